//! Why a request was refused.

use std::fmt;

/// The kinds of refusal. Each has its own status in the C ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// A pointer is null where something must be read or written.
    NullPointer,
    /// A pointer is not aligned for what it points to.
    Misaligned,
    /// A count, length or size is not the one that the request needs.
    WrongSize,
    /// A product of sizes does not fit the address space.
    Overflow,
    /// A list that needs at least one element is empty.
    EmptyList,
    /// A state spec has bits that are unknown or not allowed there.
    BadSpec,
    /// The engine table is incomplete or contradicts itself.
    BadEngine,
    /// A model and a data, or two models, do not belong together.
    LayoutMismatch,
    /// The same data stands twice in one request.
    DuplicateData,
    /// Two arrays of which one is written share memory.
    Overlap,
    /// An option or flag has a value without a meaning.
    BadOption,
    /// A model or data that the library cannot run with its promises kept.
    Unsupported,
}

/// A refusal: the kind, the argument that is at fault, and why.
///
/// The argument is written as the host wrote it, with indices
/// (`data[3].sensordata`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    argument: String,
    reason: String,
}

impl Error {
    /// A refusal of `argument`, because of `reason` (a clause without a full stop).
    pub fn new(kind: ErrorKind, argument: impl fmt::Display, reason: impl fmt::Display) -> Self {
        Self {
            kind,
            argument: argument.to_string(),
            reason: reason.to_string(),
        }
    }

    /// The kind of refusal.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The argument at fault, as the host names it.
    pub fn argument(&self) -> &str {
        &self.argument
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.argument, self.reason)
    }
}

impl std::error::Error for Error {}
