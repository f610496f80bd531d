// SPDX-License-Identifier: MIT OR Apache-2.0
//! A scripted device: a paged memory of tokens instead of KV. A row that draws reads the whole text before it back through
//! its block table, so that any error of tables, copies, shared or evicted blocks changes the answer. It also checks the
//! limits of each step.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrale_cache::{BlockName, BlockSink};
use metrale_scheduler::{
    ClockRouter, DeviceRouter, DraftRouter, Effect, Fault, FaultKind, Lookahead, PlannerLimits,
    Progress, RequestId, Router, RowOutcome, RowStatus, Scope, Segment, SpillRouter, StepOutcome,
    StepPlan, TableDelta, TokenMask,
};

use super::BLOCK;
use super::model::draw;

/// What goes wrong in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// The submission fails, after copies and tables were done half.
    Submit(Scope),
    /// The step fails after all rows were written.
    Wait(Scope),
    /// A row's logits hold a NaN; counted over the logits rows, modulo.
    Nan(usize),
    /// A row has nothing to draw from.
    Empty(usize),
    /// The device code panics when submitting.
    Panic,
    /// The device answers a row too many.
    Extra,
    /// The submission fails, and the device cannot be recovered.
    Lost,
}

/// One place of the memory: position and token.
type Cell = Option<(u32, u32)>;
/// The places of all blocks.
pub type Memory = Vec<[Cell; BLOCK as usize]>;

/// What the last draw of a request was made with: seed, choice, banned tokens, mask.
type Draw = (u64, u32, Arc<[u32]>, Option<TokenMask>);

pub struct Script {
    limits: PlannerLimits,
    pub memory: Arc<Mutex<Memory>>,
    tables: HashMap<(u32, u32), u32>,
    /// Tokens in the blocks of the second group, where there is one.
    window: Vec<[Cell; BLOCK as usize]>,
    /// Recurrent state by place: a hash of the text so far.
    states: BTreeMap<u32, u64>,
    /// Whether states are checked too.
    pub hybrid: bool,
    /// Outcomes of the steps in flight, or what they fail with.
    pending: VecDeque<Result<StepOutcome, Fault>>,
    draws: BTreeMap<RequestId, Draw>,
    /// The token that each slot drew last.
    drawn: HashMap<u32, u32>,
    pub lookahead: Lookahead,
    lost: bool,
    spilled: BTreeMap<u64, Vec<[Cell; BLOCK as usize]>>,
    pub step: u64,
    /// By step, counted from 1.
    pub mishaps: BTreeMap<u64, Mishap>,
    /// Whether to keep what is preempted.
    pub spills: bool,
    pub seen: Arc<Mutex<Seen>>,
    pub clock: Arc<AtomicU64>,
    /// The clock goes on by this much with each step.
    pub step_millis: u64,
    /// And by this much with each row.
    pub row_micros: u64,
    pub micros: Arc<AtomicU64>,
    /// Blocks wanted back from a [`Sink`].
    pub sunk: Arc<AtomicU64>,
}

/// What a test can look at.
#[derive(Default)]
pub struct Seen {
    pub effects: Vec<Effect>,
    pub plans: Vec<StepPlan<u64>>,
    /// Requests whose row was spoilt.
    pub spoilt: Vec<u64>,
    pub restored: usize,
    /// Checks of the device that did not hold. The driver catches the panic, as any panic of a router.
    pub violations: u32,
}

impl Script {
    pub fn new(limits: PlannerLimits, blocks: u32) -> Script {
        Script {
            limits,
            memory: Arc::new(Mutex::new(vec![[None; BLOCK as usize]; blocks as usize])),
            tables: HashMap::new(),
            window: vec![[None; BLOCK as usize]; 4096],
            states: BTreeMap::new(),
            hybrid: false,
            pending: VecDeque::new(),
            draws: BTreeMap::new(),
            drawn: HashMap::new(),
            lookahead: Lookahead::None,
            lost: false,
            spilled: BTreeMap::new(),
            step: 0,
            mishaps: BTreeMap::new(),
            spills: false,
            seen: Arc::default(),
            clock: Arc::default(),
            step_millis: 1,
            row_micros: 0,
            micros: Arc::default(),
            sunk: Arc::default(),
        }
    }

    fn check(&self, plan: &StepPlan<u64>) {
        let limits = &self.limits;
        assert!(plan.rows() > 0 && plan.rows() <= limits.max_rows);
        assert!(plan.logits.len() <= limits.max_logits_rows as usize);
        let chunks = plan.segments.iter().filter(|s| s.known().len() > 1);
        let prefill: usize = chunks.map(|s| s.known().len()).sum();
        assert!(
            prefill <= limits.max_prefill_tokens as usize,
            "{prefill} prefill rows"
        );
        let history = plan.logits.iter().filter_map(|l| l.history.as_ref());
        assert!(history.map(|h| h.len()).sum::<usize>() <= limits.max_history as usize);
        let bias = plan.logits.iter().map(|l| l.bias.len() + l.banned.len());
        assert!(bias.sum::<usize>() <= limits.max_bias as usize);
        let mut entries: Vec<_> = plan.tables.iter().map(|t| (t.slot, t.index)).collect();
        entries.sort_unstable();
        assert!(
            entries.windows(2).all(|w| w[0] != w[1]),
            "a table entry is written once"
        );
        assert!(
            entries
                .iter()
                .all(|e| e.1 < limits.max_seq_len.div_ceil(BLOCK))
        );
        let mut next = 0;
        let mut slots = Vec::new();
        for s in &plan.segments {
            assert_eq!(s.rows.start, next, "segments follow one another");
            assert!(!s.rows.is_empty() && !slots.contains(&s.slot) && s.slot < limits.max_num_seqs);
            assert!(s.first_position + s.rows.len() as u32 <= limits.max_seq_len);
            assert!(s.drafts <= limits.max_drafts && (s.drafts == 0 || s.known().len() == 1));
            let mut drafts = s.known().end..s.rows.end;
            assert!(drafts.all(|row| {
                plan.logits
                    .iter()
                    .any(|l| l.row == row && l.forced.is_none())
            }));
            next = s.rows.end;
            slots.push(s.slot);
        }
        assert_eq!(next, plan.rows());
        assert!(plan.logits.is_sorted_by_key(|l| l.row));
    }

    /// A panic in here is a fault of the scheduler, not a scripted one.
    fn guarded<T>(&mut self, run: impl FnOnce(&mut Self) -> T) -> T {
        self.seen.lock().unwrap().violations += 1;
        let value = run(self);
        self.seen.lock().unwrap().violations -= 1;
        value
    }

    fn text(&self, slot: u32, len: u32) -> Vec<u32> {
        (0..len)
            .map(|at| {
                let block = self.tables[&(slot, at / BLOCK)];
                let cell = self.memory.lock().unwrap()[block as usize][(at % BLOCK) as usize];
                let (position, token) = cell.expect("a row reads KV that was never written");
                assert_eq!(position, at, "a row reads another position's KV");
                token
            })
            .collect()
    }

    /// The window layers and the recurrent ones of one segment.
    fn run_beside(&mut self, plan: &StepPlan<u64>, s: &Segment) {
        let row = s.slot + self.limits.max_num_seqs;
        if s.first_position == 0 {
            self.states.insert(s.slot, 0);
        }
        for (i, token) in plan.tokens_of(s).iter().enumerate() {
            let at = s.first_position + i as u32;
            let block = self.tables[&(row, at / BLOCK)];
            self.window[block as usize][(at % BLOCK) as usize] = Some((at, *token));
            let text = self.text(s.slot, at + 1);
            for key in (at + 1).saturating_sub(super::kv::WINDOW)..=at {
                let block = self.tables[&(row, key / BLOCK)];
                let cell = self.window[block as usize][(key % BLOCK) as usize];
                assert_eq!(cell, Some((key, text[key as usize])), "a window key");
            }
            let state = self.states[&s.slot];
            let before = text[..at as usize].iter().fold(0, next_state);
            assert_eq!(state, before, "the state before position {at}");
            self.states.insert(s.slot, next_state(state, token));
        }
        if let Some(place) = s.save {
            self.states.insert(place, self.states[&s.slot]);
        }
    }

    fn run(&mut self, plan: &StepPlan<u64>) -> StepOutcome {
        for c in &plan.copies {
            let mut memory = self.memory.lock().unwrap();
            memory[c.dst as usize] = memory[c.src as usize];
        }
        for r in &plan.restores {
            let state = self.states[&r.place];
            self.states.insert(r.slot, state);
        }
        for t in &plan.tables {
            self.tables.insert((t.slot, t.index), t.block);
        }
        for s in &plan.segments {
            for (i, token) in plan.tokens_of(s).iter().enumerate() {
                let at = s.first_position + i as u32;
                let block = self.tables[&(s.slot, at / BLOCK)];
                let mut memory = self.memory.lock().unwrap();
                memory[block as usize][(at % BLOCK) as usize] = Some((at, *token));
            }
            if self.hybrid {
                self.run_beside(plan, s);
            }
        }
        let mut outcome = StepOutcome::default();
        for l in &plan.logits {
            let text = self.text(l.slot, l.position);
            let history = l.history.as_deref().map_or(&[][..], |h| h);
            let mask = l.mask.as_ref();
            assert!(mask.is_none() || l.forced.is_none());
            let d = draw(
                &text, l.sampling, l.choice, history, &l.bias, &l.banned, mask, l.forced, l.top,
            );
            let row = RowOutcome {
                row_hash: Some(d.row_hash),
                ..RowOutcome::new(d.token, d.logprob)
            };
            if l.forced.is_none() {
                let made = (l.sampling, l.choice, Arc::clone(&l.banned), l.mask.clone());
                self.draws.insert(l.request, made);
                self.drawn.insert(l.slot, d.token);
            }
            outcome.push(row, d.top);
        }
        outcome
    }

    /// The plan with the ids that the device fills in.
    fn with_ids(&self, plan: &StepPlan<u64>) -> StepPlan<u64> {
        let mut plan = plan.clone();
        for late in std::mem::take(&mut plan.late) {
            plan.tokens[late.row as usize] = self.drawn[&late.slot];
        }
        plan
    }

    fn spoil(
        &mut self,
        plan: &StepPlan<u64>,
        outcome: &mut StepOutcome,
        at: usize,
        status: RowStatus,
    ) {
        if plan.logits.is_empty() {
            return;
        }
        let at = at % plan.logits.len();
        outcome.rows[at].status = status;
        self.seen
            .lock()
            .unwrap()
            .spoilt
            .push(plan.logits[at].request.0);
    }
}

fn next_state(state: u64, token: &u32) -> u64 {
    super::hash([state, u64::from(*token) + 1])
}

fn fault(scope: Scope) -> Fault {
    Fault::new(scope, FaultKind::Device, "scripted")
}

impl DeviceRouter for Script {
    type Sampling = u64;

    fn submit(&mut self, plan: &StepPlan<u64>) -> Result<(), Fault> {
        let most = 1 + usize::from(self.lookahead == Lookahead::Slot);
        assert!(self.pending.len() < most && !self.lost);
        assert!(plan.late.is_empty() || self.lookahead == Lookahead::Slot);
        self.seen.lock().unwrap().plans.push(plan.clone());
        let plan = &self.with_ids(plan);
        self.step += 1;
        self.clock.fetch_add(self.step_millis, Ordering::Relaxed);
        let micros = self.row_micros * u64::from(plan.rows());
        self.micros.fetch_add(micros, Ordering::Relaxed);
        self.guarded(|s| s.check(plan));
        match self.mishaps.get(&self.step).copied() {
            Some(Mishap::Panic) => panic!("scripted panic"),
            Some(Mishap::Lost) => {
                self.lost = true;
                return Err(fault(Scope::Device));
            }
            Some(Mishap::Submit(scope)) => {
                for t in plan.tables.iter().step_by(2) {
                    self.tables.insert((t.slot, t.index), t.block);
                }
                return Err(fault(scope));
            }
            mishap => {
                let mut outcome = self.guarded(|s| s.run(plan));
                match mishap {
                    Some(Mishap::Nan(at)) => {
                        self.spoil(plan, &mut outcome, at, RowStatus::NonFinite)
                    }
                    Some(Mishap::Empty(at)) => self.spoil(plan, &mut outcome, at, RowStatus::Empty),
                    Some(Mishap::Extra) => outcome.push(RowOutcome::new(1, 0.0), []),
                    _ => {}
                }
                self.pending.push_back(match mishap {
                    Some(Mishap::Wait(scope)) => Err(fault(scope)),
                    _ => Ok(outcome),
                });
            }
        }
        Ok(())
    }

    fn wait(&mut self, _timeout: Duration, outcome: &mut StepOutcome) -> Result<Progress, Fault> {
        *outcome = self.pending.pop_front().expect("a step was submitted")?;
        Ok(Progress::Done)
    }

    fn lookahead(&self) -> Lookahead {
        self.lookahead
    }

    fn recover(&mut self, fault: &Fault) -> Result<(), Fault> {
        self.pending.clear();
        if self.lost {
            return Err(Fault::new(
                Scope::Device,
                FaultKind::Device,
                "the device is lost",
            ));
        }
        if fault.scope == Scope::Device {
            self.memory.lock().unwrap().fill([None; BLOCK as usize]);
            self.window.fill([None; BLOCK as usize]);
            self.states.clear();
            self.tables.clear();
        }
        Ok(())
    }
}

/// Drafts of which a number that follows from the text is right: none, some or all.
impl DraftRouter for Script {
    fn draft(&mut self, request: RequestId, text: &[u32], most: u32, drafts: &mut Vec<u32>) {
        assert!(most > 0 && drafts.is_empty());
        let Some((seed, choice, banned, mask)) = self.draws.get(&request) else {
            return;
        };
        let roll = super::hash(text.iter().map(|t| u64::from(*t) + 1));
        let (count, right) = (roll % u64::from(most + 1), roll >> 20);
        let right = right % (count + 1);
        let mut text = text.to_vec();
        for at in 0..count {
            let mask = mask.as_ref();
            let d = draw(&text, *seed, *choice, &[], &[], banned, mask, None, 0);
            let wrong = u32::from(at >= right);
            text.push((d.token + wrong) % super::VOCAB);
            drafts.extend(text.last());
        }
    }
}

impl ClockRouter for Script {
    fn now(&mut self) -> Duration {
        Duration::from_millis(self.clock.load(Ordering::Relaxed))
            + Duration::from_micros(self.micros.load(Ordering::Relaxed))
    }
}

impl SpillRouter for Script {
    fn spill(&mut self, key: u64, entries: &[TableDelta]) -> bool {
        if self.spills && !self.hybrid {
            let memory = self.memory.lock().unwrap();
            let kept = entries.iter().map(|e| memory[e.block as usize]).collect();
            assert!(self.spilled.insert(key, kept).is_none());
        }
        self.spills && !self.hybrid
    }

    fn restore(&mut self, key: u64, entries: &[TableDelta]) -> bool {
        let kept = self.spilled.remove(&key).expect("spilled before");
        for entry in entries {
            self.memory.lock().unwrap()[entry.block as usize] = kept[entry.index as usize];
        }
        self.seen.lock().unwrap().restored += 1;
        true
    }

    fn discard(&mut self, key: u64) {
        self.spilled.remove(&key);
    }
}

impl Script {
    pub fn spilled(&self) -> usize {
        self.spilled.len()
    }
}

impl Router for Script {
    fn observe(&mut self, effect: &Effect) {
        self.seen.lock().unwrap().effects.push(effect.clone());
    }
}

/// Keeps a few evicted blocks of the device's memory, and loses or spoils some of them.
pub struct Sink {
    memory: Arc<Mutex<Memory>>,
    kept: HashMap<BlockName, (u64, [Cell; BLOCK as usize])>,
    order: VecDeque<BlockName>,
    room: usize,
    pub calls: Arc<AtomicU64>,
}

impl Sink {
    pub fn new(script: &Script, room: usize) -> Sink {
        Sink {
            memory: Arc::clone(&script.memory),
            kept: HashMap::new(),
            order: VecDeque::new(),
            room,
            calls: Arc::clone(&script.sunk),
        }
    }
}

impl BlockSink for Sink {
    fn evict(&mut self, name: &BlockName, number: u64, block: u32, _beside: &[u32]) {
        let cells = self.memory.lock().unwrap()[block as usize];
        if let Some((was, before)) = self.kept.get(name) {
            assert_eq!((*was, before), (number, &cells), "equal names, equal KV");
            return;
        }
        if self.order.len() >= self.room
            && let Some(oldest) = self.order.pop_front()
        {
            self.kept.remove(&oldest);
        }
        self.order.push_back(*name);
        self.kept.insert(*name, (number, cells));
    }

    fn kept(&self, name: &BlockName) -> Option<u64> {
        self.kept.get(name).map(|k| k.0)
    }

    fn kept_beside(&self, _name: &BlockName, _group: usize) -> bool {
        false
    }

    fn worth(&self, blocks: u32) -> bool {
        blocks % 7 != 3
    }

    fn restore(&mut self, name: &BlockName, block: u32, _beside: &[u32]) -> bool {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed);
        let Some((_, cells)) = self.kept.get(name).filter(|_| calls % 5 != 4) else {
            return false;
        };
        self.memory.lock().unwrap()[block as usize] = *cells;
        true
    }

    fn reset(&mut self) {
        self.kept.clear();
        self.order.clear();
    }
}
