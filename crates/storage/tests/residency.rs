// SPDX-License-Identifier: MIT OR Apache-2.0
//! Residency against a list that is searched.

use metrale_storage::Residency;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Insert(u8, u32),
    Touch(u8),
    Remove(u8),
    Pop,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..12u8, any::<u32>()).prop_map(|(k, v)| Op::Insert(k, v)),
        3 => (0..12u8).prop_map(Op::Touch),
        1 => (0..12u8).prop_map(Op::Remove),
        1 => Just(Op::Pop),
    ]
}

proptest! {
    #[test]
    fn it_is_a_list_in_order_of_use(ops in prop::collection::vec(op(), 0..200)) {
        let mut it = Residency::default();
        let mut list: Vec<(u8, u32)> = Vec::new();
        for op in ops {
            match op {
                Op::Insert(k, v) => {
                    let before = list.iter().position(|e| e.0 == k).map(|at| list.remove(at).1);
                    prop_assert_eq!(it.insert(k, v), before);
                    list.push((k, v));
                }
                Op::Touch(k) => {
                    it.touch(&k);
                    if let Some(at) = list.iter().position(|e| e.0 == k) {
                        let entry = list.remove(at);
                        list.push(entry);
                    }
                }
                Op::Remove(k) => {
                    let want = list.iter().position(|e| e.0 == k).map(|at| list.remove(at).1);
                    prop_assert_eq!(it.remove(&k), want);
                }
                Op::Pop => {
                    let want = (!list.is_empty()).then(|| list.remove(0));
                    prop_assert_eq!(it.pop_oldest(), want);
                }
            }
            prop_assert_eq!(it.len(), list.len());
            for (k, v) in &list {
                prop_assert_eq!(it.get(k), Some(v));
            }
        }
    }
}
