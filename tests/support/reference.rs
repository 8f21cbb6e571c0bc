//! A plain loop over the toy, on a new data for each rollout: what a rollout
//! means, written as simply as possible and without the kernel.

use rollout_core::{Fill, OutcomeStatus, Simulator, Slot};

use crate::toy::{Model, Toy, spec};

/// The rows and verdict of one rollout.
#[derive(Clone, Debug)]
pub struct Rollout {
    /// nstep x nstate
    pub state: Vec<f64>,
    /// nstep x nsensordata
    pub sensordata: Vec<f64>,
    /// How it ended.
    pub status: OutcomeStatus,
    /// Valid steps.
    pub steps: usize,
}

/// Runs one rollout from `start`, with the inputs of `control_spec` given by
/// `control` (one row a step) and all others at their defaults. `untouched` is
/// what the output arrays hold beforehand.
#[expect(clippy::too_many_arguments, reason = "the inputs of a rollout")]
pub fn rollout(
    model: &Model,
    start: &[f64],
    warmstart: Option<&[f64]>,
    control_spec: u32,
    control: Option<&[&[f64]]>,
    nstep: usize,
    fill: Fill,
    untouched: f64,
) -> Rollout {
    // This thread is none of the library's.
    let model = &Model {
        retires: false,
        ..model.clone()
    };
    let full_physics = Toy::SPECS.full_physics;
    let nstate = Toy::state_size(model, full_physics);
    let mut slot = Slot::new(Toy::new(model), model);
    slot.simulator_mut().set_state(model, full_physics, start);
    if let Some(warmstart) = warmstart {
        slot.simulator_mut()
            .set_state(model, spec::WARMSTART, warmstart);
    }

    let mut state = vec![untouched; nstep * nstate];
    let mut sensordata = vec![untouched; nstep * model.nsensordata];
    let mut status = OutcomeStatus::Completed;
    let mut steps = nstep;
    // The rows that `Fill::Hold` repeats.
    let mut last_state = start.to_vec();
    let mut last_sensordata = vec![0.0; model.nsensordata];
    if model.unresettable {
        // Set only where a rollout begins with a reset.
        status = OutcomeStatus::EngineError;
        steps = 0;
    }
    for step in 0..steps {
        let before = slot.warnings();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            if let Some(control) = control {
                slot.simulator_mut()
                    .set_state(model, control_spec, control[step]);
            }
            slot.step(model)
        }));
        if !matches!(result, Ok(Ok(()))) {
            status = OutcomeStatus::EngineError;
            steps = step;
            break;
        }
        let warned: Vec<usize> = slot
            .warnings()
            .into_iter()
            .zip(before)
            .enumerate()
            .filter(|(_, (now, before))| now != before)
            .map(|(kind, _)| kind)
            .collect();
        slot.simulator()
            .get_state(model, full_physics, &mut last_state);
        last_sensordata.copy_from_slice(slot.sensordata());
        if !warned.is_empty() {
            let diverged = warned
                .iter()
                .any(|kind| Toy::SPECS.diverged_warnings & (1 << kind) != 0);
            status = if diverged {
                OutcomeStatus::Diverged
            } else {
                OutcomeStatus::Warned
            };
            steps = step;
            break;
        }
        state[step * nstate..][..nstate].copy_from_slice(&last_state);
        sensordata[step * model.nsensordata..][..model.nsensordata]
            .copy_from_slice(&last_sensordata);
    }
    for step in steps..nstep {
        let state = &mut state[step * nstate..][..nstate];
        let sensordata = &mut sensordata[step * model.nsensordata..][..model.nsensordata];
        match fill {
            Fill::Untouched => {}
            Fill::Nan => {
                state.fill(f64::NAN);
                sensordata.fill(f64::NAN);
            }
            Fill::Hold => {
                state.copy_from_slice(&last_state);
                sensordata.copy_from_slice(&last_sensordata);
            }
        }
    }
    Rollout {
        state,
        sensordata,
        status,
        steps,
    }
}
