//! The toy: a simulator with everything that can go wrong in a real one.
//!
//! A handful of coupled oscillators with controls, applied forces, mocap-like
//! inputs whose defaults come from the model, user data that changes the motion,
//! a warm start that the motion depends on, sensors, warnings with an automatic
//! reset, errors, panics, and hidden state. Whatever a rollout forgets to set
//! changes its bits.

use std::cell::Cell;
use std::hint;
use std::mem;

use rollout_core::Simulator;
use rollout_core::simulator::{Readings, Specs};

/// Spec bits; deliberately not MuJoCo's.
pub mod spec {
    /// Time, 1 number.
    pub const TIME: u32 = 1 << 3;
    /// Positions, nq numbers.
    pub const QPOS: u32 = 1 << 4;
    /// Velocities, nq numbers.
    pub const QVEL: u32 = 1 << 5;
    /// Controls, nu numbers.
    pub const CTRL: u32 = 1 << 0;
    /// Applied forces, nq numbers.
    pub const QFRC: u32 = 1 << 7;
    /// Mocap positions, nmocap numbers.
    pub const MOCAP: u32 = 1 << 9;
    /// User data, nuserdata numbers.
    pub const USERDATA: u32 = 1 << 10;
    /// Warm start, nq numbers.
    pub const WARMSTART: u32 = 1 << 12;
    /// All inputs.
    pub const USER: u32 = CTRL | QFRC | MOCAP | USERDATA;
    /// All of them, in the order of their bits.
    pub const ALL: [u32; 8] = [CTRL, TIME, QPOS, QVEL, QFRC, MOCAP, USERDATA, WARMSTART];
}

/// Kinds of warning.
pub mod warning {
    /// A control is not a number; it is ignored.
    pub const BAD_CTRL: usize = 1;
    /// A position has run away; the state is reset.
    pub const BAD_QPOS: usize = 2;
}

/// Positions beyond this are a divergence.
pub const QPOS_LIMIT: f64 = 1e3;

/// A control of this value makes the step fail.
pub const FAIL: f64 = 77.0;
/// A control of this value makes the step panic.
pub const PANIC: f64 = 78.0;
/// A control of this value cannot even be set.
pub const UNSETTABLE: f64 = 79.0;

/// The toy's model.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Number of positions and of velocities.
    pub nq: usize,
    /// Number of controls.
    pub nu: usize,
    /// Number of user data.
    pub nuserdata: usize,
    /// Number of sensors.
    pub nsensordata: usize,
    /// Defaults of the mocap inputs.
    pub mocap: Vec<f64>,
    /// Differs between models of one request.
    pub stiffness: f64,
    /// Sensor values are not computed.
    pub sensors_disabled: bool,
    /// The motion depends on how many steps the data has made since its reset.
    pub hidden_state: bool,
    /// Turns of an empty loop in each step: what a step costs.
    pub work: u32,
    /// A reset fails.
    pub unresettable: bool,
    /// A thread that has seen an error must not use any data any more.
    pub retires: bool,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            nq: 3,
            nu: 2,
            nuserdata: 1,
            nsensordata: 4,
            mocap: vec![0.5],
            stiffness: 1.0,
            sensors_disabled: false,
            hidden_state: false,
            work: 0,
            unresettable: false,
            retires: false,
        }
    }
}

thread_local! {
    /// This thread has seen an error of a model that retires threads.
    static SPENT: Cell<bool> = const { Cell::new(false) };
}

/// Counts an error of this thread's, and returns it.
fn error(model: &Model, text: String) -> String {
    SPENT.set(SPENT.get() || model.retires);
    text
}

/// Fails where the thread that calls ought to have been retired.
fn check_thread(model: &Model) {
    assert!(
        !(model.retires && SPENT.get()),
        "a thread that was to be retired asks to panic"
    );
}

/// The toy's data.
#[derive(Clone, Debug)]
pub struct Toy {
    time: [f64; 1],
    qpos: Vec<f64>,
    qvel: Vec<f64>,
    ctrl: Vec<f64>,
    qfrc: Vec<f64>,
    mocap: Vec<f64>,
    userdata: Vec<f64>,
    warmstart: Vec<f64>,
    steps_since_reset: u32,
    /// An error has left this data unusable: only a reset helps.
    broken: bool,
    /// A step is being made.
    stepping: bool,
}

impl Toy {
    /// A data in the model's initial state.
    pub fn new(model: &Model) -> Self {
        Self {
            time: [0.0],
            qpos: vec![0.0; model.nq],
            qvel: vec![0.0; model.nq],
            ctrl: vec![0.0; model.nu],
            qfrc: vec![0.0; model.nq],
            mocap: model.mocap.clone(),
            userdata: vec![0.0; model.nuserdata],
            warmstart: vec![0.0; model.nq],
            steps_since_reset: 0,
            broken: false,
            stepping: false,
        }
    }

    /// Whether an error has left this data unusable.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Steps since this data was made or reset.
    pub fn steps_since_reset(&self) -> u32 {
        self.steps_since_reset
    }

    fn component(&self, bit: u32) -> &[f64] {
        match bit {
            spec::TIME => &self.time,
            spec::QPOS => &self.qpos,
            spec::QVEL => &self.qvel,
            spec::CTRL => &self.ctrl,
            spec::QFRC => &self.qfrc,
            spec::MOCAP => &self.mocap,
            spec::USERDATA => &self.userdata,
            spec::WARMSTART => &self.warmstart,
            _ => panic!("unknown spec bit {bit:#x}"),
        }
    }

    fn component_mut(&mut self, bit: u32) -> &mut [f64] {
        match bit {
            spec::TIME => &mut self.time,
            spec::QPOS => &mut self.qpos,
            spec::QVEL => &mut self.qvel,
            spec::CTRL => &mut self.ctrl,
            spec::QFRC => &mut self.qfrc,
            spec::MOCAP => &mut self.mocap,
            spec::USERDATA => &mut self.userdata,
            spec::WARMSTART => &mut self.warmstart,
            _ => panic!("unknown spec bit {bit:#x}"),
        }
    }
}

/// The bits of `set`, lowest first.
fn bits_of(set: u32) -> impl Iterator<Item = u32> {
    let mut bits = spec::ALL;
    bits.sort_unstable();
    bits.into_iter().filter(move |bit| set & bit != 0)
}

impl Simulator for Toy {
    type Model = Model;

    const SPECS: Specs = Specs {
        full_physics: spec::TIME | spec::QPOS | spec::QVEL,
        user: spec::USER,
        warmstart: spec::WARMSTART,
        ctrl: spec::CTRL,
        model_inputs: spec::MOCAP,
        diverged_warnings: 1 << warning::BAD_QPOS,
    };

    const NWARNING: usize = 3;

    fn state_size(model: &Model, set: u32) -> usize {
        bits_of(set)
            .map(|bit| match bit {
                spec::TIME => 1,
                spec::CTRL => model.nu,
                spec::MOCAP => model.mocap.len(),
                spec::USERDATA => model.nuserdata,
                _ => model.nq,
            })
            .sum()
    }

    fn nsensordata(model: &Model) -> usize {
        model.nsensordata
    }

    fn layout(model: &Model) -> u64 {
        [
            model.nq,
            model.nu,
            model.nuserdata,
            model.nsensordata,
            model.mocap.len(),
        ]
        .iter()
        .fold(0, |hash, &size| hash * 101 + size as u64)
    }

    fn hidden_state(model: &Model) -> bool {
        model.hidden_state
    }

    fn get_state(&self, model: &Model, set: u32, mut state: &mut [f64]) {
        check_thread(model);
        for bit in bits_of(set) {
            let component = self.component(bit);
            let (row, rest) = state.split_at_mut(component.len());
            row.copy_from_slice(component);
            state = rest;
        }
    }

    fn set_state(&mut self, model: &Model, set: u32, mut state: &[f64]) {
        check_thread(model);
        for bit in bits_of(set) {
            let component = self.component_mut(bit);
            let (row, rest) = state.split_at(component.len());
            if bit == spec::CTRL && row.contains(&UNSETTABLE) {
                self.broken = true;
                panic!("{}", error(model, "a control asks to panic".to_owned()));
            }
            component.copy_from_slice(row);
            state = rest;
        }
    }

    fn step(&mut self, model: &Model, mut readings: Readings<'_>) -> Result<(), String> {
        check_thread(model);
        if mem::replace(&mut self.stepping, true) {
            return Err("two threads step one data".to_owned());
        }
        hint::black_box(&mut *self);
        for turn in 0..model.work {
            hint::black_box(turn);
        }
        if self.broken {
            return Err(error(model, "the data is still broken".to_owned()));
        }
        for i in 0..self.ctrl.len() {
            if self.ctrl[i] == FAIL {
                self.broken = true;
                let text = format!("control {i} at time {} asks to fail", self.time[0]);
                return Err(error(model, text));
            }
            if self.ctrl[i] == PANIC {
                self.broken = true;
                panic!("{}", error(model, format!("control {i} asks to panic")));
            }
            if self.ctrl[i].is_nan() {
                readings.warn(warning::BAD_CTRL);
                self.ctrl[i] = 0.0;
            }
        }
        if !model.sensors_disabled {
            for (i, value) in readings.sensordata.iter_mut().enumerate() {
                *value = self.qpos[i % model.nq] + 0.25 * self.qvel[i % model.nq] + i as f64;
            }
        }
        let pull: f64 = self.mocap.iter().sum::<f64>() + self.userdata.iter().sum::<f64>();
        let hidden = if model.hidden_state {
            f64::from(self.steps_since_reset)
        } else {
            0.0
        };
        for i in 0..model.nq {
            let control = if model.nu > 0 {
                self.ctrl[i % model.nu]
            } else {
                0.0
            };
            let qacc = control + self.qfrc[i] + 0.125 * pull
                - model.stiffness * (self.qpos[i] - self.qpos[(i + 1) % model.nq])
                + 0.0625 * self.warmstart[i]
                + 0.03125 * hidden;
            self.warmstart[i] = qacc;
            self.qvel[i] += 0.01 * qacc;
        }
        for i in 0..model.nq {
            self.qpos[i] += 0.01 * self.qvel[i];
        }
        self.time[0] += 0.01;
        self.steps_since_reset += 1;
        self.stepping = false;
        if self.qpos.iter().any(|q| q.is_nan() || q.abs() > QPOS_LIMIT) {
            readings.warn(warning::BAD_QPOS);
            *self = Toy::new(model);
        }
        Ok(())
    }

    fn reset(&mut self, model: &Model) {
        check_thread(model);
        if model.unresettable {
            panic!("{}", error(model, "a reset asks to panic".to_owned()));
        }
        *self = Toy::new(model);
    }
}
