//! The kernel: rollouts of one request, one after the other, on one data.
//!
//! The meaning of a rollout is that of `mujoco.rollout`, less its leaks. Before
//! a rollout everything that could carry over from what the data did before is
//! set: inputs that the request does not give (to their defaults), the start
//! state, the warm start, the warning counters, and the sensor values, which the
//! engine does not compute when sensors are disabled. Where the host says that
//! there is more (`MODEL_HIDDEN_STATE`), the data is reset first. Then, for each
//! step: the controls, the step, the outputs. Any warning ends the rollout.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr;

use crate::engine::Data;
use crate::outcome::{Outcome, OutcomeStatus, Tally};
use crate::request::{Fill, Request};
use crate::trap::{self, Call, CallList, Entered, Ran, WarningText};

/// Watches the kernel from inside its loop, and may interrupt it.
pub trait Observer {
    /// A step was made (and perhaps failed). Says how its rollout goes on, if it does.
    fn stepped(&mut self) -> Flow;

    /// A rollout has ended. Says how the others go on. (What was said after its last step, if
    /// that ended it, was not heeded, and is to be said again.)
    fn finished(&mut self) -> Flow;
}

/// How the kernel goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// With the next step, or the next rollout.
    GoOn,
    /// Not now, and perhaps not on this thread: the lane is left with its rollout unfinished,
    /// and whoever takes the slot next goes on where it was.
    Pause,
    /// Not at all: the rollout ends here, for this reason, and no other one is begun.
    End(Ended),
}

/// Why a rollout ended that would have gone on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its request was cancelled.
    Cancelled,
    /// The request's time was up.
    OutOfTime,
}

/// The observer that sees nothing.
impl Observer for () {
    #[inline(always)]
    fn stepped(&mut self) -> Flow {
        Flow::GoOn
    }

    #[inline(always)]
    fn finished(&mut self) -> Flow {
        Flow::GoOn
    }
}

/// One thread's use of one data, from when it takes the slot until it leaves it.
///
/// An engine error leaves the data in an undefined state. It is reset before its next
/// use: that of the next rollout, or the host's. Not on this thread, though, if the
/// engine's threads are to be retired after an error ([`HOOKS_RETIRE_THREAD`]).
///
/// [`HOOKS_RETIRE_THREAD`]: crate::trap::HOOKS_RETIRE_THREAD
#[derive(Debug)]
pub struct Lane<'r, 'a> {
    request: &'r Request<'a>,
    slot: usize,
    condition: Condition,
    tally: Tally,
    _entered: Entered,
}

/// What a data is in the middle of when its lane is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// Of nothing: any rollout can follow.
    #[default]
    Ready,
    /// Of this rollout, whose error has left it in an undefined state.
    Undefined {
        /// The rollout.
        rollout: usize,
    },
    /// Of this rollout, which goes on with this step.
    Paused {
        /// The rollout.
        rollout: usize,
        /// Its next step.
        step: usize,
    },
}

impl<'a> Request<'a> {
    /// Takes a slot for the calling thread, as [`Lane::leave`] has left it.
    ///
    /// # Safety
    ///
    /// * [`begin`](Request::begin) was called for this run.
    /// * `slot` is below [`ndata`](Request::ndata).
    /// * No other thread uses this slot as long as the lane lives.
    /// * The condition is the one in which this run's last lane of the slot was left, or
    ///   `Ready` if there was none.
    pub unsafe fn lane(&self, slot: usize, condition: Condition) -> Lane<'_, 'a> {
        Lane {
            request: self,
            slot,
            condition,
            tally: Tally::default(),
            _entered: self.engine.enter(),
        }
    }

    /// Whether the calling thread may run rollouts of this request. Not, if the engine's
    /// threads are to be retired after an error and this one has seen one.
    pub fn is_welcome(&self) -> bool {
        self.engine.is_welcome()
    }
}

impl Lane<'_, '_> {
    /// Goes on with the rollout that is paused, if one is, then runs those of `range` in
    /// their order, and takes each off the range before it is run. Returns
    /// [`Flow::GoOn`] when all have ended, or else what the observer said; and
    /// [`Flow::Pause`] where this thread must not go on
    /// ([`is_welcome`](Request::is_welcome)).
    ///
    /// # Safety
    ///
    /// * `range` is within 0 .. [`nbatch`](Request::nbatch).
    /// * No other call of this run has or will have a rollout of this range.
    pub unsafe fn run(&mut self, range: &mut Range<usize>, observer: &mut impl Observer) -> Flow {
        let request = self.request;
        let data = &request.data[self.slot];
        while request.is_welcome() {
            let ran = if let Condition::Paused { rollout, step } = self.condition {
                self.condition = Condition::Ready;
                // SAFETY: this lane has the slot, and the rollout too, which was begun on
                // this data.
                (rollout, unsafe {
                    request.continue_rollout(data, rollout, step, observer)
                })
            } else if let Some(rollout) = range.next() {
                let undefined = self.condition != Condition::Ready;
                // SAFETY: this lane has the slot, and this call the rollout, by the
                // caller's promise.
                (rollout, unsafe {
                    request.run_rollout(data, rollout, undefined, observer)
                })
            } else {
                return Flow::GoOn;
            };
            let rollout = ran.0;
            match ran.1 {
                RolloutRan::Paused { step } => {
                    self.condition = Condition::Paused { rollout, step };
                    return Flow::Pause;
                }
                // SAFETY: as above.
                RolloutRan::Ended(outcome) => unsafe { self.ended(rollout, outcome) },
            }
            match observer.finished() {
                Flow::GoOn => {}
                flow => return flow,
            }
        }
        Flow::Pause
    }

    /// Ends the rollout that is paused, if one is, without another step.
    ///
    /// # Safety
    ///
    /// * As for [`run`](Lane::run).
    pub unsafe fn end_paused(&mut self, why: Ended) {
        if let Condition::Paused { rollout, step } = self.condition {
            self.condition = Condition::Ready;
            // SAFETY: the rollout is this lane's; it is in the middle.
            unsafe {
                let outcome = self.request.stopped(rollout, step, why);
                self.ended(rollout, outcome);
            }
        }
    }

    /// Counts an outcome and writes it.
    ///
    /// # Safety
    ///
    /// * The rollout is this lane's.
    unsafe fn ended(&mut self, rollout: usize, outcome: Outcome) {
        let request = self.request;
        if outcome.status == OutcomeStatus::EngineError as i32 {
            self.condition = Condition::Undefined { rollout };
            let reason = trap::reason();
            // SAFETY: the caller's promise.
            unsafe { request.write_message(rollout, &reason) };
            self.tally.add_failed(rollout, reason);
        } else {
            self.condition = Condition::Ready;
            self.tally.add(&outcome);
        }
        if let Some(outcomes) = request.outcomes {
            // SAFETY: there is room for nbatch outcomes (`Request::new`), and no other
            // call writes this one.
            unsafe { ptr::write(outcomes.add(rollout), outcome) };
        }
    }

    /// Leaves the slot. Says how the rollouts ended, and what the data is in the middle
    /// of.
    pub fn leave(mut self) -> (Tally, Condition) {
        if self.request.is_welcome() {
            self.reset();
        }
        (self.tally, self.condition)
    }

    /// Leaves the slot for good, where no other thread could take it, and says how the
    /// rollouts ended: the data is reset even on a thread that should not use it any more. (What such a thread has kept of
    /// an error is used by a step, not by a reset.)
    pub fn give_up(mut self) -> Tally {
        self.reset();
        self.tally
    }

    /// Whether a rollout is paused here.
    pub fn is_paused(&self) -> bool {
        matches!(self.condition, Condition::Paused { .. })
    }

    /// Resets a data that is undefined.
    fn reset(&mut self) {
        let request = self.request;
        if let Condition::Undefined { rollout } = self.condition {
            let (model, data) = (request.model(rollout), request.data[self.slot].data);
            // SAFETY: the rollout's model and the data fit each other; the data is this
            // lane's, which has entered.
            let ran = unsafe { request.engine.run(model, data, &[Call::RESET]) };
            if ran == Ran::Done {
                self.condition = Condition::Ready;
            }
        }
    }
}

/// How far a rollout has come.
enum RolloutRan {
    /// To its end.
    Ended(Outcome),
    /// To before this step.
    Paused { step: usize },
}

impl Request<'_> {
    /// Runs one rollout, on a data that is reset first if it is undefined. An engine
    /// error leaves the data as it is.
    ///
    /// # Safety
    ///
    /// * `data` is a data of this request that only this thread uses.
    /// * `rollout` is below nbatch, and no other call has it.
    unsafe fn run_rollout(
        &self,
        data: &Data,
        rollout: usize,
        undefined: bool,
        observer: &mut impl Observer,
    ) -> RolloutRan {
        let model = self.model(rollout);
        // SAFETY: the caller's promises.
        unsafe {
            if self.set_start(model, data, rollout, undefined) == Ran::Failed {
                return RolloutRan::Ended(self.failed(rollout, 0));
            }
            self.continue_rollout(data, rollout, 0, observer)
        }
    }

    /// Makes the steps of a rollout from `first` on.
    ///
    /// # Safety
    ///
    /// * `data` is a data of this request that only this thread uses, and in the state in
    ///   which the step before has left it.
    /// * `rollout` is below nbatch, and no other call has it.
    unsafe fn continue_rollout(
        &self,
        data: &Data,
        rollout: usize,
        first: usize,
        observer: &mut impl Observer,
    ) -> RolloutRan {
        let model = self.model(rollout);
        let full_physics = self.engine.full_physics;
        for step in first..self.nstep {
            let row = match self.state {
                // SAFETY: a row of nstate numbers within the array, and this call's.
                Some(state) => unsafe { state.add(self.row(rollout, step) * self.nstate) },
                None => ptr::null_mut(),
            };
            let control = match &self.control {
                // SAFETY: in range.
                Some(control) => unsafe { control.row(rollout, step) },
                None => ptr::null(),
            };
            let calls = [
                Call::set(self.control_spec, control),
                Call::STEP,
                Call::healthy(data),
                Call::get(full_physics, row),
            ];
            // Without controls not the first, without a state output not the last.
            let calls = &calls[usize::from(self.control.is_none())..];
            let calls = &calls[..calls.len() - usize::from(self.state.is_none())];
            // SAFETY: model and data fit each other, and the data is this thread's; the
            // rows have the sizes of their specs; the lane has entered.
            let ran = unsafe { self.engine.run(model, data.data, calls) };
            let flow = observer.stepped();
            match ran {
                Ran::Done => {}
                // SAFETY: the step is in range, and the rollout is this call's.
                Ran::Failed => return RolloutRan::Ended(unsafe { self.failed(rollout, step) }),
                Ran::Warned => {
                    // SAFETY: as above; the data is this thread's.
                    return RolloutRan::Ended(unsafe { self.warned(model, data, rollout, step) });
                }
            }
            // SAFETY: as above.
            unsafe { self.record_sensordata(data, rollout, step) };
            let next = step + 1;
            match flow {
                // After the last step there is nothing left to interrupt.
                Flow::Pause if next < self.nstep => return RolloutRan::Paused { step: next },
                Flow::End(why) if next < self.nstep => {
                    // SAFETY: as above.
                    return RolloutRan::Ended(unsafe { self.stopped(rollout, next, why) });
                }
                _ => {}
            }
        }
        RolloutRan::Ended(Outcome::new(OutcomeStatus::Completed, self.nstep))
    }

    /// Sets everything that a rollout depends on.
    ///
    /// # Safety
    ///
    /// * `data` is a data of this request that only this thread uses.
    /// * `rollout` is below nbatch, and `model` its model.
    unsafe fn set_start(
        &self,
        model: *const c_void,
        data: &Data,
        rollout: usize,
        undefined: bool,
    ) -> Ran {
        let (engine, defaults) = (&self.engine, &self.defaults);
        let mut calls = CallList::new();
        calls.push(Call::FORGET);
        if defaults.reset || undefined {
            calls.push(Call::RESET);
        }
        if defaults.model_spec != 0 && !defaults.reset {
            calls.push(Call::set(
                defaults.model_spec,
                defaults.model_values.as_ptr(),
            ));
        }
        if defaults.zero_spec != 0 {
            calls.push(Call::set(defaults.zero_spec, defaults.zeros.as_ptr()));
        }
        // SAFETY: the rollout is in range.
        unsafe {
            calls.push(Call::set(
                engine.full_physics,
                self.initial_state.row(rollout, 0),
            ));
            if let Some(warmstart) = &self.initial_warmstart {
                calls.push(Call::set(engine.warmstart, warmstart.row(rollout, 0)));
            }
        }
        // SAFETY: model and data fit each other and the data is this thread's; each
        // array has the size of the spec that it is passed with (for inputs and defaults
        // `Request::new` made sure); `sensordata` has `nsensordata` numbers
        // (`Simulation::new`); the lane has entered.
        unsafe {
            let ran = engine.run(model, data.data, calls.as_slice());
            if self.nsensordata > 0 {
                ptr::write_bytes(data.sensordata, 0, self.nsensordata);
            }
            data.clear_warnings();
            ran
        }
    }

    /// Writes the sensor values of a step that was made.
    ///
    /// # Safety
    ///
    /// * `data` is a data of this request that only this thread uses.
    /// * `rollout` and `step` are in range, and no other call has the rollout.
    unsafe fn record_sensordata(&self, data: &Data, rollout: usize, step: usize) {
        if let Some(sensordata) = self.sensordata
            && self.nsensordata > 0
        {
            // SAFETY: the row has nsensordata numbers within the array, and is this
            // call's; source and row do not overlap (`check_overlaps`).
            unsafe {
                let row = sensordata.add(self.row(rollout, step) * self.nsensordata);
                ptr::copy_nonoverlapping(data.sensordata, row, self.nsensordata);
            }
        }
    }

    /// Ends a rollout in whose step `step` the engine warned.
    ///
    /// # Safety
    ///
    /// * `data` is a data of this request that only this thread uses.
    /// * `rollout` and `step` are in range, `model` belongs to the rollout, and no
    ///   other call has it.
    #[cold]
    unsafe fn warned(
        &self,
        model: *const c_void,
        data: &Data,
        rollout: usize,
        step: usize,
    ) -> Outcome {
        let diverged = self.engine.diverged_warnings;
        // SAFETY: the data is this thread's.
        let (kind, info) = unsafe { data.first_warning(diverged) }.unwrap_or_default();
        let mut calls = CallList::new();
        if let (Fill::Hold, Some(state)) = (self.fill, self.state) {
            // SAFETY: the row is within the array.
            let row = unsafe { state.add(self.row(rollout, step) * self.nstate) };
            calls.push(Call::get(self.engine.full_physics, row));
        }
        // The last one, as a text lives until the next call.
        let mut text = WarningText::of(info);
        if self.messages.is_some() && self.engine.warning_text.is_some() {
            calls.push(Call::text(kind, &mut text));
        }
        // SAFETY: model and data fit each other, and the data is this thread's; the row
        // has nstate numbers; the lane has entered.
        if unsafe { self.engine.run(model, data.data, calls.as_slice()) } == Ran::Failed {
            // An engine that cannot even say what it warned of: the data is not to be
            // trusted after that.
            // SAFETY: the step is in range, and the rollout is this call's.
            return unsafe { self.failed(rollout, step) };
        }
        // SAFETY: nothing was called since.
        if let Some(text) = unsafe { text.get() } {
            // SAFETY: the rollout is this call's.
            unsafe { self.write_message(rollout, &text) };
        }
        match self.fill {
            Fill::Untouched => {}
            // SAFETY: the rollout is this call's.
            Fill::Nan => unsafe { self.fill_nan(rollout, step) },
            // SAFETY: as above; the data is this thread's.
            Fill::Hold => unsafe {
                self.record_sensordata(data, rollout, step);
                self.repeat_row(rollout, step);
            },
        }
        let status = match diverged & (1 << kind) {
            0 => OutcomeStatus::Warned,
            _ => OutcomeStatus::Diverged,
        };
        Outcome {
            warning: kind as i32,
            ..Outcome::new(status, step)
        }
    }

    /// Ends a rollout before its step `step`.
    ///
    /// # Safety
    ///
    /// * `rollout` and `step` are in range, and no other call has the rollout.
    #[cold]
    unsafe fn stopped(&self, rollout: usize, step: usize, why: Ended) -> Outcome {
        // SAFETY: the caller's promises.
        unsafe { self.fill_invalid(rollout, step) };
        let status = match why {
            Ended::Cancelled => OutcomeStatus::Cancelled,
            Ended::OutOfTime => OutcomeStatus::OutOfTime,
        };
        Outcome::new(status, step)
    }

    /// Fills the rows from `step` on, the first of which there is nothing.
    ///
    /// # Safety
    ///
    /// * `rollout` and `step` are in range, and no other call has the rollout.
    unsafe fn fill_invalid(&self, rollout: usize, step: usize) {
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
    /// * The step is in range unless nstep is 0, and no other call has the rollout.
    #[cold]
    unsafe fn failed(&self, rollout: usize, step: usize) -> Outcome {
        if self.nstep > 0 {
            // SAFETY: the step is in range, and the rollout is this call's.
            unsafe { self.fill_invalid(rollout, step) };
        }
        Outcome::new(OutcomeStatus::EngineError, step)
    }

    /// Writes the message of a rollout, cut to fit at a character's boundary.
    ///
    /// # Safety
    ///
    /// * `rollout` is below nbatch, and no other call has it.
    unsafe fn write_message(&self, rollout: usize, text: &str) {
        if let Some((texts, size)) = self.messages {
            let length = text.floor_char_boundary(size - 1);
            // SAFETY: there is room for nbatch texts of this size, which is at least 1
            // (`Request::new`).
            unsafe {
                let to = texts.add(rollout * size);
                ptr::copy_nonoverlapping(text.as_ptr().cast(), to, length);
                *to.add(length) = 0;
            }
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
