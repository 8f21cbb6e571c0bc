//! What became of each rollout, and of a request as a whole.

/// What became of one rollout. The layout of this struct is fixed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// A RolloutOutcomeStatus (in Rust an `OutcomeStatus`) as a number.
    pub status: i32,
    /// The kind of the engine's warning that ended the rollout, in the engine's
    /// own numbering (MuJoCo's `mjtWarning`), or -1.
    pub warning: i32,
    /// Valid steps: the steps before the one that warned or failed, or before the end that
    /// the request was given.
    pub steps: u64,
}

/// How a rollout ended. The numbers are grouped by who ended it and are never used
/// again for something else.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutcomeStatus {
    /// All steps were made without a warning.
    Completed = 0,
    /// The engine warned during a step; the rollout ended there.
    Warned = 1,
    /// The engine warned of a bad position, velocity or acceleration: the
    /// simulation diverged. MuJoCo has then reset the state by itself, unless that
    /// is disabled.
    Diverged = 2,
    /// The engine reported an error during a step.
    EngineError = 10,
    /// The rollout was not run.
    NotStarted = 30,
    /// The request was cancelled in the middle of the rollout.
    Cancelled = 31,
    /// The request's time was up in the middle of the rollout.
    OutOfTime = 32,
}

impl Outcome {
    /// The outcome of a rollout that nobody has run.
    pub const fn not_started() -> Self {
        Self::new(OutcomeStatus::NotStarted, 0)
    }

    pub(crate) const fn new(status: OutcomeStatus, steps: usize) -> Self {
        Self {
            status: status as i32,
            warning: -1,
            steps: steps as u64,
        }
    }

    /// Whether all steps were made without a warning.
    pub fn completed(&self) -> bool {
        self.status == OutcomeStatus::Completed as i32
    }
}

/// The first of the rollouts that ended with an engine error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstFailed {
    /// The rollout.
    pub rollout: usize,
    /// The engine's reason, in its own words.
    pub reason: String,
}

/// How many rollouts ended in which way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Rollouts that made all their steps.
    pub completed: usize,
    /// Rollouts that ended with a warning, the diverged ones included.
    pub warned: usize,
    /// Rollouts that ended with an engine error.
    pub failed: usize,
    /// Rollouts that were begun and then cancelled or out of time.
    pub stopped: usize,
    /// The failed rollout of the lowest index.
    pub first_failed: Option<FirstFailed>,
}

impl Tally {
    /// Counts an outcome that is no engine error.
    pub(crate) fn add(&mut self, outcome: &Outcome) {
        use OutcomeStatus as S;
        let count = match outcome.status {
            s if s == S::Completed as i32 => &mut self.completed,
            s if s == S::Cancelled as i32 || s == S::OutOfTime as i32 => &mut self.stopped,
            _ => &mut self.warned,
        };
        *count += 1;
    }

    /// Counts an engine error. Rollouts are counted in their order.
    pub(crate) fn add_failed(&mut self, rollout: usize, reason: String) {
        self.failed += 1;
        self.first_failed
            .get_or_insert(FirstFailed { rollout, reason });
    }

    /// Rollouts that were begun.
    pub fn total(&self) -> usize {
        self.completed + self.warned + self.failed + self.stopped
    }

    /// Adds what another thread has counted.
    pub fn merge(&mut self, other: Tally) {
        self.completed += other.completed;
        self.warned += other.warned;
        self.failed += other.failed;
        self.stopped += other.stopped;
        self.first_failed = match (self.first_failed.take(), other.first_failed) {
            (Some(a), Some(b)) => Some(if a.rollout <= b.rollout { a } else { b }),
            (a, b) => a.or(b),
        };
    }
}
