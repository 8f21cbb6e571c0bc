//! What a rollout means: random requests, on every thread count, chunk and
//! history of the data, against a plain loop, bit for bit.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use rollout_core::simulator::Fixed;
use rollout_core::trap::HOOKS_RETIRE_THREAD;
use rollout_core::{
    Arrays, Data, Engine, Fill, Input, Outcome, OutcomeStatus, Output, Request, Simulation,
    Simulator, Slot, Tally, engine,
};
use rollout_pool::{Pool, Start, Terms};
use rollout_tests::toy::{self, Model, Toy, spec};
use rollout_tests::{Numbers, bits, reference};

/// How an input is laid out.
#[derive(Clone, Copy, Debug)]
struct Strides {
    shared_by_rollouts: bool,
    shared_by_steps: bool,
    /// Numbers between the rows that nobody shall read.
    gap: usize,
}

/// A random request: sizes, strides, specs, options, and the seed of its numbers.
#[derive(Clone, Debug)]
struct Case {
    model: Model,
    model_for_each: bool,
    nbatch: usize,
    nstep: usize,
    initial_state: Strides,
    initial_warmstart: Option<Strides>,
    control: Option<(u32, Strides)>,
    /// One in so many controls is NaN, huge, or makes one of the engine's functions fail;
    /// 0 for none.
    trouble: usize,
    fill: Fill,
    chunk_size: usize,
    ndata: usize,
    seed: u64,
}

fn strides() -> impl Strategy<Value = Strides> {
    (any::<bool>(), any::<bool>(), 0..3_usize).prop_map(
        |(shared_by_rollouts, shared_by_steps, gap)| Strides {
            shared_by_rollouts,
            shared_by_steps,
            gap,
        },
    )
}

fn model() -> impl Strategy<Value = Model> {
    let sizes = (1..4_usize, 0..3_usize, 0..3_usize, 0..4_usize, 0..3_usize);
    // A step that costs something now and then, so that workers have a part in it.
    let work = prop_oneof![3 => Just(0), 1 => Just(20_000)];
    (sizes, any::<bool>(), any::<bool>(), work).prop_map(
        |((nq, nu, nuserdata, nsensordata, nmocap), sensors_disabled, hidden_state, work)| Model {
            nq,
            nu,
            nuserdata,
            nsensordata,
            mocap: (0..nmocap).map(|i| 0.5 + i as f64).collect(),
            stiffness: 1.0,
            sensors_disabled,
            hidden_state,
            work,
            ..Model::default()
        },
    )
}

fn control() -> impl Strategy<Value = (u32, Strides)> {
    let spec = proptest::sample::subsequence(
        vec![spec::CTRL, spec::QFRC, spec::MOCAP, spec::USERDATA],
        1..=4,
    )
    .prop_map(|bits| bits.into_iter().fold(0, |set, bit| set | bit));
    (spec, strides())
}

fn case() -> impl Strategy<Value = Case> {
    let what = (
        model(),
        any::<bool>(),
        0..9_usize,
        0..7_usize,
        strides(),
        proptest::option::of(strides()),
        proptest::option::of(control()),
    );
    let how = (
        prop_oneof![Just(0_usize), Just(4), Just(40)],
        prop_oneof![Just(Fill::Nan), Just(Fill::Hold), Just(Fill::Untouched)],
        0..4_usize,
        1..5_usize,
        any::<bool>(),
        prop_oneof![9 => Just(false), 1 => Just(true)],
        any::<u64>(),
    );
    (what, how).prop_map(
        |(
            (mut model, model_for_each, nbatch, nstep, initial_state, initial_warmstart, control),
            (trouble, fill, chunk_size, ndata, retires, unresettable, seed),
        )| Case {
            model: {
                let given = control.map_or(0, |(spec, _)| spec);
                let defaults = !model.mocap.is_empty() && given & spec::MOCAP == 0;
                model.unresettable = unresettable && (model.hidden_state || defaults);
                model.retires = retires;
                model
            },
            model_for_each: model_for_each && nbatch > 0,
            nbatch,
            nstep,
            initial_state: Strides {
                shared_by_steps: true,
                ..initial_state
            },
            initial_warmstart: initial_warmstart.map(|strides| Strides {
                shared_by_steps: true,
                ..strides
            }),
            control,
            trouble,
            fill,
            chunk_size,
            ndata,
            seed,
        },
    )
}

/// An input array of random numbers, with what it takes to find its rows.
struct Array {
    values: Vec<f64>,
    rollout_stride: usize,
    step_stride: usize,
    row: usize,
}

impl Array {
    fn new(
        numbers: &mut Numbers,
        strides: Strides,
        nbatch: usize,
        nstep: usize,
        row: usize,
    ) -> Self {
        let step_stride = if strides.shared_by_steps {
            0
        } else {
            row + strides.gap
        };
        let steps = if strides.shared_by_steps { 1 } else { nstep };
        let rollout_stride = if strides.shared_by_rollouts {
            0
        } else {
            steps * (row + strides.gap)
        };
        let count = if nbatch == 0 || nstep == 0 || row == 0 {
            0
        } else {
            (nbatch - 1) * rollout_stride + (nstep - 1) * step_stride + row
        };
        Self {
            values: numbers.units(count),
            rollout_stride,
            step_stride,
            row,
        }
    }

    fn input(&self) -> Input<'_> {
        Input::strided(&self.values, self.rollout_stride, self.step_stride)
    }

    fn row(&self, rollout: usize, step: usize) -> &[f64] {
        if self.row == 0 {
            return &[];
        }
        &self.values[rollout * self.rollout_stride + step * self.step_stride..][..self.row]
    }
}

/// What the output arrays hold before a run.
const UNTOUCHED: f64 = -123.0;

#[derive(Clone, Debug, PartialEq)]
struct Outputs {
    state: Vec<u64>,
    sensordata: Vec<u64>,
    outcomes: Vec<Outcome>,
}

/// The inputs of a case as arrays.
struct Inputs {
    models: Vec<Model>,
    initial_state: Array,
    initial_warmstart: Option<Array>,
    control: Option<Array>,
}

impl Case {
    fn inputs(&self) -> Inputs {
        let numbers = &mut Numbers::new(self.seed);
        let nmodel = if self.model_for_each { self.nbatch } else { 1 };
        let models = (0..nmodel)
            .map(|i| Model {
                stiffness: 1.0 + i as f64,
                mocap: self.model.mocap.iter().map(|m| m + i as f64).collect(),
                ..self.model.clone()
            })
            .collect();
        let size = |spec| Toy::state_size(&self.model, spec);
        let (nbatch, nstep) = (self.nbatch, self.nstep);
        let full_physics = size(Toy::SPECS.full_physics);
        let initial_state = Array::new(numbers, self.initial_state, nbatch, 1, full_physics);
        let initial_warmstart = self
            .initial_warmstart
            .map(|strides| Array::new(numbers, strides, nbatch, 1, size(spec::WARMSTART)));
        let mut control = self
            .control
            .map(|(spec, strides)| Array::new(numbers, strides, nbatch, nstep, size(spec)));
        if let (Some(array), true) = (&mut control, self.trouble > 0) {
            for value in &mut array.values {
                if numbers.below(self.trouble) == 0 {
                    let troubles = [f64::NAN, 1e9, toy::FAIL, toy::PANIC, toy::UNSETTABLE];
                    *value = troubles[numbers.below(troubles.len())];
                }
            }
        }
        Inputs {
            models,
            initial_state,
            initial_warmstart,
            control,
        }
    }

    fn expected(&self) -> Outputs {
        let inputs = self.inputs();
        let mut outputs = Outputs {
            state: vec![],
            sensordata: vec![],
            outcomes: vec![],
        };
        for rollout in 0..self.nbatch {
            let rows: Option<Vec<&[f64]>> = inputs
                .control
                .as_ref()
                .map(|control| (0..self.nstep).map(|t| control.row(rollout, t)).collect());
            let expected = reference::rollout(
                &inputs.models[rollout % inputs.models.len()],
                inputs.initial_state.row(rollout, 0),
                inputs.initial_warmstart.as_ref().map(|w| w.row(rollout, 0)),
                self.control.map_or(0, |(spec, _)| spec),
                rows.as_deref(),
                self.nstep,
                self.fill,
                UNTOUCHED,
            );
            outputs.state.extend(bits(&expected.state));
            outputs.sensordata.extend(bits(&expected.sensordata));
            outputs.outcomes.push(Outcome {
                status: expected.status as i32,
                warning: match expected.status {
                    OutcomeStatus::Warned => toy::warning::BAD_CTRL as i32,
                    OutcomeStatus::Diverged => toy::warning::BAD_QPOS as i32,
                    _ => -1,
                },
                steps: expected.steps as u64,
            });
        }
        outputs
    }

    /// Data that have done something else before: every component is set to
    /// nonsense, some steps are made.
    fn dirty_slots(&self, seed: u64) -> Vec<Slot<Toy>> {
        let numbers = &mut Numbers::new(seed);
        // What this thread does here is none of the library's business.
        let model = &Model {
            retires: false,
            ..self.model.clone()
        };
        (0..self.ndata)
            .map(|_| {
                let mut slot = Slot::new(Toy::new(model), model);
                for bit in spec::ALL {
                    let values = numbers.units(Toy::state_size(model, bit));
                    slot.simulator_mut().set_state(model, bit, &values);
                }
                slot.sensordata_mut().fill(1e6);
                for _ in 0..numbers.below(4) {
                    slot.step(model).unwrap();
                }
                slot
            })
            .collect()
    }

    /// Runs the case on a pool, or with the core alone.
    fn run(&self, pool: Option<&Pool>, history: u64) -> Outputs {
        self.run_by(history, |request| match pool {
            Some(pool) => pool.run(&mut { request }).unwrap(),
            None => { request }.run(),
        })
    }

    /// Runs the case in a ticket that is attended to for no time at all, again and again:
    /// the caller pauses after each step, and goes on where others have been.
    fn run_in_slices(&self, pool: &Pool, history: u64, start: Start) -> Outputs {
        self.run_by(history, |request| {
            pool.scope(|scope| {
                let ticket = scope.submit(request, Terms::default(), start).unwrap();
                loop {
                    if let Some(result) = ticket.wait_timeout(Duration::ZERO) {
                        assert!(ticket.is_done());
                        assert_eq!(ticket.progress().rollouts, self.nbatch as u64);
                        return result.unwrap();
                    }
                }
            })
        })
    }

    fn run_by(&self, history: u64, run: impl FnOnce(Request<'_>) -> Tally) -> Outputs {
        let inputs = self.inputs();
        let mut slots = self.dirty_slots(history);
        let nstate = Toy::state_size(&self.model, Toy::SPECS.full_physics);
        let rows = self.nbatch * self.nstep;
        let mut state = vec![UNTOUCHED; rows * nstate];
        let mut sensordata = vec![UNTOUCHED; rows * self.model.nsensordata];
        let mut outcomes = vec![Outcome::not_started(); self.nbatch];
        let arrays = Arrays {
            nbatch: self.nbatch,
            nstep: self.nstep,
            control_spec: self.control.map_or(0, |(spec, _)| spec),
            initial_state: inputs.initial_state.input(),
            initial_warmstart: inputs.initial_warmstart.as_ref().map(Array::input),
            control: inputs.control.as_ref().map(Array::input),
            state: Some(Output::new(&mut state)),
            sensordata: Some(Output::new(&mut sensordata)),
            outcomes: Some(Output::new(&mut outcomes)),
            fill: self.fill,
            chunk_size: self.chunk_size,
            ..Arrays::default()
        };
        let fixed: Vec<_> = inputs.models.iter().map(Fixed::<Toy>::new).collect();
        let models: Vec<_> = fixed.iter().map(engine::Model::of).collect();
        let data: Vec<_> = slots.iter_mut().map(Data::of).collect();
        let mut engine = Engine::of::<Toy>();
        if self.model.retires {
            engine.hooks.flags = HOOKS_RETIRE_THREAD;
        }
        // SAFETY: the table is that of these models and data, which are borrowed here.
        let simulation = unsafe { Simulation::new(&engine, models, data) };
        let tally = run(Request::new(simulation, arrays).unwrap());
        assert_eq!(tally.completed + tally.warned + tally.failed, self.nbatch);
        // The host gets its data back in a state that is defined.
        let broken = slots.iter().any(|slot| slot.simulator().is_broken());
        assert!(!broken || self.model.unresettable);
        let first_failed = outcomes
            .iter()
            .position(|o| o.status == OutcomeStatus::EngineError as i32);
        let told = tally.first_failed.map(|first| first.rollout);
        assert_eq!(told, first_failed);
        Outputs {
            state: bits(&state),
            sensordata: bits(&sensordata),
            outcomes,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn one_thread_equals_a_plain_loop(mut case in case(), history in any::<u64>()) {
        quiet_panics();
        // One thread has no other to take its place.
        case.model.retires = false;
        prop_assert_eq!(case.run(None, history), case.expected());
    }

    #[test]
    fn every_pool_equals_a_plain_loop(case in case(), history in any::<u64>()) {
        quiet_panics();
        let expected = case.expected();
        for pool in pools() {
            prop_assert_eq!(&case.run(Some(pool), history), &expected);
        }
    }

    #[test]
    fn a_ticket_in_slices_equals_a_plain_loop(case in case(), history in any::<u64>()) {
        quiet_panics();
        let expected = case.expected();
        for pool in pools() {
            for start in [Start::AtOnce, Start::Attended] {
                prop_assert_eq!(&case.run_in_slices(pool, history, start), &expected);
            }
        }
    }
}

/// Pools of 0, 1, 2, 3 and 8 threads that live as long as the tests.
fn pools() -> &'static [Pool] {
    use std::sync::OnceLock;
    static POOLS: OnceLock<Vec<Pool>> = OnceLock::new();
    POOLS.get_or_init(|| [0, 1, 2, 3, 8].map(|n| Pool::new(n).unwrap()).into())
}

/// The toy panics on purpose; its messages would drown the others.
fn quiet_panics() {
    use std::sync::Once;
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = info.payload_as_str().unwrap_or("");
            if !text.contains("asks to panic") || text.len() > 200 {
                before(info);
            }
        }));
    });
}

/// A case without trouble, large enough that many threads have a part in it.
fn plain_case() -> Case {
    Case {
        model: Model::default(),
        model_for_each: false,
        nbatch: 64,
        nstep: 20,
        initial_state: Strides {
            shared_by_rollouts: false,
            shared_by_steps: true,
            gap: 0,
        },
        initial_warmstart: None,
        control: Some((
            spec::CTRL,
            Strides {
                shared_by_rollouts: false,
                shared_by_steps: false,
                gap: 0,
            },
        )),
        trouble: 0,
        fill: Fill::Nan,
        chunk_size: 0,
        ndata: 8,
        seed: 1,
    }
}

#[test]
fn r12_rollouts_without_control_do_not_see_the_ctrl_that_data_hold() {
    let case = Case {
        control: None,
        nbatch: 32,
        initial_state: Strides {
            shared_by_rollouts: true,
            shared_by_steps: true,
            gap: 0,
        },
        chunk_size: 1,
        ..plain_case()
    };
    for pool in pools() {
        let outputs = case.run(Some(pool), 7);
        let rows: Vec<_> = outputs.state.chunks(outputs.state.len() / 32).collect();
        assert!(rows.iter().all(|row| row == &rows[0]));
    }
}

#[test]
fn r13_a_rollout_does_not_see_what_its_data_did_before() {
    let a = Case {
        trouble: 30,
        seed: 2,
        ndata: 1,
        ..plain_case()
    };
    let b = Case {
        seed: 3,
        ndata: 1,
        ..plain_case()
    };
    let (a_inputs, b_inputs) = (a.inputs(), b.inputs());
    let mut slots = [Slot::new(Toy::new(&a.model), &a.model)];
    quiet_panics();
    let mut run = |case: &Case, inputs: &Inputs| {
        let rows = case.nbatch * case.nstep;
        let mut state = vec![UNTOUCHED; rows * inputs.initial_state.row];
        let arrays = Arrays {
            nbatch: case.nbatch,
            nstep: case.nstep,
            initial_state: inputs.initial_state.input(),
            control: inputs.control.as_ref().map(Array::input),
            state: Some(Output::new(&mut state)),
            ..Arrays::default()
        };
        Request::new(Simulation::of(&inputs.models, &mut slots).unwrap(), arrays)
            .unwrap()
            .run();
        bits(&state)
    };
    let b_alone = run(&b, &b_inputs);
    run(&a, &a_inputs);
    let b_after_a = run(&b, &b_inputs);
    assert_eq!(b_after_a, b_alone);
}

#[test]
fn r13_with_the_warmstart_given_two_requests_equal_one() {
    let case = Case {
        nbatch: 1,
        nstep: 20,
        ndata: 1,
        ..plain_case()
    };
    let inputs = case.inputs();
    let control = inputs.control.as_ref().unwrap();
    let whole = case.run(None, 5).state;
    let nstate = inputs.initial_state.row;

    let mut slots = [Slot::new(Toy::new(&case.model), &case.model)];
    let mut state = inputs.initial_state.values.clone();
    let mut warmstart = vec![0.0; case.model.nq];
    let mut pieces = vec![];
    for piece in control.values.chunks(10 * control.row) {
        let mut rows = vec![0.0; 10 * nstate];
        let arrays = Arrays {
            nbatch: 1,
            nstep: 10,
            initial_state: Input::shared(&state),
            initial_warmstart: Some(Input::shared(&warmstart)),
            control: Some(Input::steps(piece, 10, control.row)),
            state: Some(Output::new(&mut rows)),
            ..Arrays::default()
        };
        Request::new(Simulation::of(&inputs.models, &mut slots).unwrap(), arrays)
            .unwrap()
            .run();
        state = rows[9 * nstate..].to_vec();
        slots[0]
            .simulator()
            .get_state(&case.model, spec::WARMSTART, &mut warmstart);
        pieces.extend(bits(&rows));
    }
    assert_eq!(pieces, whole);
}

#[test]
fn r30_one_hash_for_all_thread_counts_and_chunks() {
    let expected = hash(&plain_case().expected());
    let pools: Vec<Pool> = [1, 2, 4, 8].map(|n| Pool::new(n).unwrap()).into();
    for repeat in 0..1000 {
        let case = Case {
            chunk_size: [1, 7, 64][repeat % 3],
            ..plain_case()
        };
        let pool = &pools[repeat % 4];
        assert_eq!(hash(&case.run(Some(pool), repeat as u64)), expected);
    }
}

fn hash(outputs: &Outputs) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&outputs.state, &outputs.sensordata).hash(&mut hasher);
    hasher.finish()
}

#[test]
fn r70_a_simulator_that_panics_in_one_rollout_ends_that_rollout() {
    quiet_panics();
    let model = [Model::default()];
    let start = [0.1; 7];
    let mut control = vec![0.5; 8 * 5 * 2];
    let run = |pool: &Pool, control: &[f64]| {
        let mut slots = [(); 3].map(|()| Slot::new(Toy::new(&model[0]), &model[0]));
        let mut state = vec![UNTOUCHED; 8 * 5 * 7];
        let mut outcomes = [Outcome::not_started(); 8];
        let arrays = Arrays {
            nbatch: 8,
            nstep: 5,
            initial_state: Input::shared(&start),
            control: Some(Input::steps(control, 5, 2)),
            state: Some(Output::new(&mut state)),
            outcomes: Some(Output::new(&mut outcomes)),
            ..Arrays::default()
        };
        let mut request =
            Request::new(Simulation::of(&model, &mut slots).unwrap(), arrays).unwrap();
        let tally = pool.run(&mut request).unwrap();
        drop(request);
        (bits(&state), outcomes, tally)
    };
    let pools = [1, 2, 8].map(|n| Pool::new(n).unwrap());
    let (good, _, _) = run(&pools[0], &control);
    // Rollout 3, in its third step.
    control[3 * 5 * 2 + 2 * 2] = toy::PANIC;
    for pool in &pools {
        let (state, outcomes, tally) = run(pool, &control);
        let first = tally.first_failed.unwrap();
        assert_eq!((tally.failed, first.rollout), (1, 3));
        assert!(
            first.reason.contains("control 0 asks to panic"),
            "{}",
            first.reason
        );
        assert_eq!(outcomes[3].status, OutcomeStatus::EngineError as i32);
        assert_eq!(outcomes[3].steps, 2);
        for (rollout, rows) in state.chunks(5 * 7).enumerate() {
            let valid = if rollout == 3 { 2 * 7 } else { 5 * 7 };
            assert_eq!(rows[..valid], good[rollout * 5 * 7..][..valid]);
        }
        // The pool lives.
        control[3 * 5 * 2 + 2 * 2] = 0.5;
        let (state, _, tally) = run(pool, &control);
        assert_eq!(tally.completed, 8);
        assert_eq!(state, good);
        control[3 * 5 * 2 + 2 * 2] = toy::PANIC;
    }
}

#[test]
fn messages_hold_the_engines_text_cut_to_fit() {
    let model = [Model::default()];
    let mut slots = [Slot::new(Toy::new(&model[0]), &model[0])];
    let mut control = vec![0.0; 3 * 2 * 2];
    // Rollout 1 fails in its second step.
    control[6] = toy::FAIL;
    let mut texts = vec![0x55; 3 * 12];
    let mut outcomes = [Outcome::not_started(); 3];
    let start = [0.0; 7];
    let arrays = Arrays {
        nbatch: 3,
        nstep: 2,
        initial_state: Input::shared(&start),
        control: Some(Input::steps(&control, 2, 2)),
        outcomes: Some(Output::new(&mut outcomes)),
        messages: Some(Output::new(&mut texts)),
        message_size: 12,
        ..Arrays::default()
    };
    let tally = Request::new(Simulation::of(&model, &mut slots).unwrap(), arrays)
        .unwrap()
        .run();
    assert_eq!((tally.completed, tally.failed), (2, 1));
    assert_eq!(outcomes[1].steps, 1);
    let text = |i: usize| -> Vec<u8> {
        texts[i * 12..][..12]
            .iter()
            .take_while(|c| **c != 0)
            .map(|c| *c as u8)
            .collect()
    };
    assert_eq!(text(0), b"");
    assert_eq!(text(1), b"control 0 a");
    assert_eq!(text(2), b"");
}

#[test]
fn r27_shared_rows_are_not_copied() {
    let model = [Model::default()];
    let mut slots = [(); 2].map(|()| Slot::new(Toy::new(&model[0]), &model[0]));
    let pool = Pool::new(2).unwrap();
    let (start, control) = ([0.1; 7], [0.2, 0.3]);
    let mut outcomes = vec![Outcome::not_started(); 100_000];
    LARGEST.store(0, Ordering::Relaxed);
    let arrays = Arrays {
        nbatch: 100_000,
        nstep: 3,
        initial_state: Input::shared(&start),
        control: Some(Input::shared(&control)),
        outcomes: Some(Output::new(&mut outcomes)),
        ..Arrays::default()
    };
    let mut request = Request::new(Simulation::of(&model, &mut slots).unwrap(), arrays).unwrap();
    assert_eq!(pool.run(&mut request).unwrap().completed, 100_000);
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(largest < 1_000_000, "an allocation of {largest} bytes");
}

/// The largest allocation since it was last set to zero. Other tests of this
/// program allocate too, but none of them a megabyte at once.
static LARGEST: AtomicUsize = AtomicUsize::new(0);

struct Watching;

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

#[test]
fn divergence_is_told_before_a_warning_of_the_same_step() {
    // A control that is not a number and a position that has run away.
    let model = [Model {
        nu: 2,
        ..Model::default()
    }];
    let mut slots = [Slot::new(Toy::new(&model[0]), &model[0])];
    let mut start = [0.0; 7];
    start[1] = 2.0 * toy::QPOS_LIMIT;
    let control = [f64::NAN, 0.0];
    let mut outcomes = [Outcome::not_started()];
    let arrays = Arrays {
        nbatch: 1,
        nstep: 1,
        initial_state: Input::shared(&start),
        control: Some(Input::shared(&control)),
        outcomes: Some(Output::new(&mut outcomes)),
        ..Arrays::default()
    };
    let simulation = Simulation::of(&model, &mut slots).unwrap();
    Request::new(simulation, arrays).unwrap().run();
    assert_eq!(outcomes[0].status, OutcomeStatus::Diverged as i32);
    assert_eq!(outcomes[0].warning, toy::warning::BAD_QPOS as i32);
}
