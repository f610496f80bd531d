// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which keys have a page, in order of their last use.

use std::collections::HashMap;
use std::hash::Hash;

const NONE: u32 = u32::MAX;

/// A map that knows the order of use: [`Residency::pop_oldest`] says what goes first.
pub struct Residency<K, V> {
    places: HashMap<K, u32>,
    nodes: Vec<Node<K, V>>,
    free: Vec<u32>,
    oldest: u32,
    newest: u32,
}

struct Node<K, V> {
    /// `None`: a free node.
    entry: Option<(K, V)>,
    older: u32,
    newer: u32,
}

impl<K, V> Default for Residency<K, V> {
    fn default() -> Self {
        Residency {
            places: HashMap::new(),
            nodes: Vec::new(),
            free: Vec::new(),
            oldest: NONE,
            newest: NONE,
        }
    }
}

impl<K: Eq + Hash + Clone, V> Residency<K, V> {
    /// Keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The value of `key`, its order of use unchanged.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<&V> {
        let at = *self.places.get(key)?;
        self.nodes[at as usize].entry.as_ref().map(|e| &e.1)
    }

    /// `key` was used just now.
    pub fn touch(&mut self, key: &K) {
        if let Some(at) = self.places.get(key).copied() {
            self.unlink(at);
            self.link(at);
        }
    }

    /// Adds `key`, used just now; gives back what it had before.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let before = self.remove(&key);
        let node = Node {
            entry: Some((key.clone(), value)),
            older: NONE,
            newer: NONE,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        self.places.insert(key, at);
        self.link(at);
        before
    }

    /// Takes `key` out.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.places.remove(key)?;
        self.unlink(at);
        self.free.push(at);
        self.nodes[at as usize].entry.take().map(|e| e.1)
    }

    /// Takes out what was used longest ago.
    pub fn pop_oldest(&mut self) -> Option<(K, V)> {
        let at = self.oldest;
        let key = self.nodes.get(at as usize)?.entry.as_ref()?.0.clone();
        self.remove(&key).map(|value| (key, value))
    }

    fn link(&mut self, at: u32) {
        let newest = std::mem::replace(&mut self.newest, at);
        let node = &mut self.nodes[at as usize];
        (node.older, node.newer) = (newest, NONE);
        match newest {
            NONE => self.oldest = at,
            before => self.nodes[before as usize].newer = at,
        }
    }

    fn unlink(&mut self, at: u32) {
        let Node { older, newer, .. } = self.nodes[at as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.nodes[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.nodes[newer as usize].older = older,
        }
    }
}
