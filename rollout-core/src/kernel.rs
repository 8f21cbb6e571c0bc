//! The kernel: rollouts of one request, one after the other, on one data.
//!
//! The meaning of a rollout is that of `mujoco.rollout`, less its leaks. Before
//! a rollout everything that could carry over from what the data did before is
//! set: inputs that the request does not give (to their defaults), the start
//! state, the warm start, the warning counters, and the sensor values, which the
//! engine does not compute when sensors are disabled. Where the host says that
//! there is more (`MODEL_HIDDEN_STATE`), the data is reset first. Then, for each
//! step: the controls, the step, the outputs. Any warning ends the rollout.

use std::ffi::{c_char, c_void};
use std::ops::Range;
use std::ptr;

use crate::engine::Data;
use crate::outcome::{Outcome, OutcomeStatus, Tally};
use crate::request::{Fill, Request};

/// Watches the kernel from inside its loop.
pub trait Observer {
    /// A step was made (and perhaps failed).
    fn stepped(&mut self);
}

/// The observer that sees nothing.
impl Observer for () {
    #[inline(always)]
    fn stepped(&mut self) {}
}

impl Request<'_> {
    /// Runs the rollouts of `range` on the data of `slot`, and counts how they ended.
    ///
    /// # Safety
    ///
    /// * [`begin`](Request::begin) was called for this run.
    /// * `slot` is below [`ndata`](Request::ndata), and `range` within
    ///   0 .. [`nbatch`](Request::nbatch).
    /// * No other thread uses this slot meanwhile.
    /// * No other call of this run has or will have a rollout of this range.
    pub unsafe fn run_range(
        &self,
        slot: usize,
        range: Range<usize>,
        observer: &mut impl Observer,
    ) -> Tally {
        let data = &self.data[slot];
        let mut tally = Tally::default();
        for rollout in range {
            // SAFETY: this thread has the slot, and this call the rollout, by the
            // caller's promise.
            let outcome = unsafe { self.run_rollout(data, rollout, observer) };
            if let Some(outcomes) = self.outcomes {
                // SAFETY: there is room for nbatch outcomes (`Request::new`), and
                // no other call writes this one.
                unsafe { ptr::write(outcomes.add(rollout), outcome) };
            }
            tally.add(rollout, &outcome);
        }
        tally
    }

    /// # Safety
    ///
    /// * `data` is a data of this request that only this thread uses.
    /// * `rollout` is below nbatch, and no other call has it.
    unsafe fn run_rollout(
        &self,
        data: &Data,
        rollout: usize,
        observer: &mut impl Observer,
    ) -> Outcome {
        let model = self.model(rollout);
        // SAFETY: the data is this thread's, and the rollout in range.
        unsafe {
            self.set_start(model, data, rollout);
            if self.took_error(data, rollout) {
                return self.failed(model, data, rollout, 0);
            }
        }

        for step in 0..self.nstep {
            if let Some(control) = &self.control {
                // SAFETY: the row is within the array, which was checked against
                // the size of this spec; the data is this thread's.
                unsafe {
                    (self.calls.set_state)(
                        model,
                        data.data,
                        control.row(rollout, step),
                        self.control_spec,
                    );
                }
            }
            // SAFETY: model and data fit each other; the data is this thread's.
            unsafe { (self.calls.step)(model, data.data) };
            observer.stepped();

            // SAFETY: as above; the rollout is this call's.
            unsafe {
                if self.took_error(data, rollout) {
                    return self.failed(model, data, rollout, step);
                }
            }
            // SAFETY: as above.
            if let Some(kind) = unsafe { data.first_warning(self.calls.diverged_warnings) } {
                // SAFETY: as above.
                unsafe { self.fill_after_warning(model, data, rollout, step) };
                return self.warned(kind, step);
            }
            // SAFETY: as above.
            unsafe {
                self.record(model, data, rollout, step);
                if self.took_error(data, rollout) {
                    return self.failed(model, data, rollout, step);
                }
            }
        }
        Outcome::new(OutcomeStatus::Completed, self.nstep)
    }

    /// Sets everything that a rollout depends on.
    ///
    /// # Safety
    ///
    /// * `data` is a data of this request that only this thread uses.
    /// * `rollout` is below nbatch, and `model` its model.
    unsafe fn set_start(&self, model: *const c_void, data: &Data, rollout: usize) {
        let calls = &self.calls;
        let defaults = &self.defaults;
        // SAFETY: model and data fit each other and the data is this thread's;
        // each array has the size of the spec that it is passed with (for inputs
        // and defaults `Request::new` made sure); `sensordata` has `nsensordata`
        // numbers (`Simulation::new`).
        unsafe {
            if defaults.reset {
                (calls.reset)(model, data.data);
            } else if defaults.model_spec != 0 {
                (calls.set_state)(
                    model,
                    data.data,
                    defaults.model_values.as_ptr(),
                    defaults.model_spec,
                );
            }
            if defaults.zero_spec != 0 {
                (calls.set_state)(
                    model,
                    data.data,
                    defaults.zeros.as_ptr(),
                    defaults.zero_spec,
                );
            }
            (calls.set_state)(
                model,
                data.data,
                self.initial_state.row(rollout, 0),
                calls.full_physics,
            );
            if let Some(warmstart) = &self.initial_warmstart {
                (calls.set_state)(model, data.data, warmstart.row(rollout, 0), calls.warmstart);
            }
            if self.nsensordata > 0 {
                ptr::write_bytes(data.sensordata, 0, self.nsensordata);
            }
            data.clear_warnings();
        }
    }

    /// Writes the output rows of a step that was made.
    ///
    /// # Safety
    ///
    /// * `data` is a data of this request that only this thread uses.
    /// * `rollout` and `step` are in range, `model` belongs to the rollout, and
    ///   no other call has it.
    unsafe fn record(&self, model: *const c_void, data: &Data, rollout: usize, step: usize) {
        if let Some(state) = self.state {
            // SAFETY: the row has nstate numbers within the array, and is this
            // call's; the data is this thread's.
            unsafe {
                let row = state.add(self.row(rollout, step) * self.nstate);
                (self.calls.get_state)(model, data.data, row, self.calls.full_physics);
            }
        }
        if let Some(sensordata) = self.sensordata
            && self.nsensordata > 0
        {
            // SAFETY: as above; source and row do not overlap (`check_overlaps`).
            unsafe {
                let row = sensordata.add(self.row(rollout, step) * self.nsensordata);
                ptr::copy_nonoverlapping(data.sensordata, row, self.nsensordata);
            }
        }
    }

    /// Fills the rows from `step` on, the one in which the engine warned.
    ///
    /// # Safety
    ///
    /// * As for `record`.
    unsafe fn fill_after_warning(
        &self,
        model: *const c_void,
        data: &Data,
        rollout: usize,
        step: usize,
    ) {
        match self.fill {
            Fill::Untouched => {}
            // SAFETY: the rollout is this call's.
            Fill::Nan => unsafe { self.fill_nan(rollout, step) },
            // SAFETY: as above; the data is this thread's.
            Fill::Hold => unsafe {
                self.record(model, data, rollout, step);
                // The rollout has ended; an error in reading it out is not the
                // next one's.
                self.calls.forget_error(data.data);
                self.repeat_row(rollout, step);
            },
        }
    }

    /// Fills the rows from `step` on, the one in which the engine failed.
    ///
    /// # Safety
    ///
    /// * `rollout` and `step` are in range, and no other call has the rollout.
    unsafe fn fill_after_error(&self, rollout: usize, step: usize) {
        match self.fill {
            Fill::Untouched => {}
            // SAFETY: the rollout is this call's.
            Fill::Nan => unsafe { self.fill_nan(rollout, step) },
            // SAFETY: as above; step - 1 is in range in its branch.
            Fill::Hold if step > 0 => unsafe { self.repeat_row(rollout, step - 1) },
            Fill::Hold => {
                if let Some(state) = self.state {
                    // SAFETY: both rows have nstate numbers within their arrays,
                    // which do not overlap (`Request::new`).
                    unsafe {
                        let row = state.add(self.row(rollout, 0) * self.nstate);
                        let start = self.initial_state.row(rollout, 0);
                        ptr::copy_nonoverlapping(start, row, self.nstate);
                    }
                }
                if let Some(sensordata) = self.sensordata {
                    // SAFETY: the row has nsensordata numbers within the array.
                    unsafe {
                        let row = sensordata.add(self.row(rollout, 0) * self.nsensordata);
                        ptr::write_bytes(row, 0, self.nsensordata);
                    }
                }
                // SAFETY: the rollout is this call's.
                unsafe { self.repeat_row(rollout, 0) };
            }
        }
    }

    /// Copies the rows of `step` to all later steps.
    ///
    /// # Safety
    ///
    /// * `rollout` and `step` are in range, and no other call has the rollout.
    unsafe fn repeat_row(&self, rollout: usize, step: usize) {
        for (array, size) in self.outputs() {
            for later in step + 1..self.nstep {
                // SAFETY: two different rows of this rollout, both within the array.
                unsafe {
                    ptr::copy_nonoverlapping(
                        array.add(self.row(rollout, step) * size),
                        array.add(self.row(rollout, later) * size),
                        size,
                    );
                }
            }
        }
    }

    /// Writes NaN to the rows from `step` on.
    ///
    /// # Safety
    ///
    /// * `rollout` and `step` are in range, and no other call has the rollout.
    unsafe fn fill_nan(&self, rollout: usize, step: usize) {
        for (array, size) in self.outputs() {
            let first = self.row(rollout, step) * size;
            for i in first..self.row(rollout + 1, 0) * size {
                // SAFETY: within the rows of this rollout, which are this call's.
                unsafe { *array.add(i) = f64::NAN };
            }
        }
    }

    /// Ends a rollout in whose step `step` the engine failed.
    ///
    /// # Safety
    ///
    /// * As for `record`; nstep may be 0.
    unsafe fn failed(
        &self,
        model: *const c_void,
        data: &Data,
        rollout: usize,
        step: usize,
    ) -> Outcome {
        // SAFETY: model and data fit each other, and the data is this thread's.
        // What a data holds after an error is not defined, so nobody shall see it.
        unsafe { (self.calls.reset)(model, data.data) };
        // SAFETY: as above. Should the reset have failed too, that is part of this
        // failure and not of the next rollout.
        unsafe { self.calls.forget_error(data.data) };
        if self.nstep > 0 {
            // SAFETY: the step is in range, and the rollout is this call's.
            unsafe { self.fill_after_error(rollout, step) };
        }
        Outcome::new(OutcomeStatus::EngineError, step)
    }

    /// Asks the engine whether its last call failed, and keeps its text.
    ///
    /// # Safety
    ///
    /// * `data` is a data of this request that only this thread uses.
    /// * `rollout` is below nbatch, and no other call has it.
    unsafe fn took_error(&self, data: &Data, rollout: usize) -> bool {
        let Some(take_error) = self.calls.take_error else {
            return false;
        };
        let mut nowhere: c_char = 0;
        let (text, size) = match self.messages {
            // SAFETY: there is room for nbatch texts of this size.
            Some((texts, size)) => (unsafe { texts.add(rollout * size) }, size),
            None => (&raw mut nowhere, 1),
        };
        // SAFETY: the data is this thread's, and `size` bytes can be written.
        let failed = unsafe { take_error(data.data, text, size) } != 0;
        if failed {
            // SAFETY: the last byte of the text. An engine that forgets to end
            // its text shall not make the host read on.
            unsafe { *text.add(size - 1) = 0 };
        }
        failed
    }

    fn warned(&self, kind: u32, step: usize) -> Outcome {
        let diverged = self.calls.diverged_warnings & (1 << kind) != 0;
        let status = if diverged {
            OutcomeStatus::Diverged
        } else {
            OutcomeStatus::Warned
        };
        Outcome {
            warning: kind as i32,
            ..Outcome::new(status, step)
        }
    }

    /// The output arrays that there are, with the size of a row.
    fn outputs(&self) -> impl Iterator<Item = (*mut f64, usize)> {
        [
            (self.state, self.nstate),
            (self.sensordata, self.nsensordata),
        ]
        .into_iter()
        .filter_map(|(array, size)| Some((array?, size)))
    }

    /// The number of a row in the output arrays.
    fn row(&self, rollout: usize, step: usize) -> usize {
        rollout * self.nstep + step
    }
}
