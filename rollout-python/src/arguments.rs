//! The arguments of a call: what they say, where they are as they usually are.
//!
//! The rules are those of `_rollout.py`, which says why. What the library checks anyway,
//! the sizes of rows above all, is left to it: it refuses what does not fit, and the
//! general path then finds the words.

use std::slice;

use rollout::RolloutPool;
use rollout_core::{Data, Model};

use crate::array::{Rows, Written};
use crate::mujoco;
use crate::python::{Object, Owned, Unusual, Usual, usual};
use crate::setup::Setup;

/// The arguments, in their order.
pub(crate) struct Arguments<'a> {
    /// The address of the library's pool, 0 where it cannot be used.
    pool: &'a Object,
    nthread: &'a Object,
    skip_checks: &'a Object,
    model: &'a Object,
    data: &'a Object,
    initial_state: &'a Object,
    control: &'a Object,
    control_spec: &'a Object,
    nstep: &'a Object,
    initial_warmstart: &'a Object,
    state: &'a Object,
    sensordata: &'a Object,
    chunk_size: &'a Object,
}

/// What they say.
pub(crate) struct Said {
    pub(crate) pool: *mut RolloutPool,
    pub(crate) model: Model,
    pub(crate) data: Vec<Data>,
    /// The objects behind `data` and `model`, as another thread may change the lists that
    /// they stand in.
    pub(crate) _owners: Vec<Owned>,
    pub(crate) nbatch: usize,
    pub(crate) nstep: usize,
    pub(crate) control_spec: u32,
    pub(crate) chunk_size: usize,
    pub(crate) initial_state: Rows,
    pub(crate) initial_warmstart: Option<Rows>,
    pub(crate) control: Option<Rows>,
    pub(crate) state: Written,
    pub(crate) sensordata: Written,
}

impl<'a> Arguments<'a> {
    /// # Safety
    ///
    /// * `first` points to `count` objects that are alive for `'a`.
    /// * This thread holds the interpreter's lock while it uses them.
    pub(crate) unsafe fn new(first: *const *mut Object, count: isize) -> Usual<Self> {
        const COUNT: usize = 13;
        usual(count == COUNT as isize)?;
        // SAFETY: there are `COUNT` pointers.
        let given = unsafe { slice::from_raw_parts(first, COUNT) };
        // SAFETY: the caller's promise.
        let argument = |index: usize| unsafe { Object::from_raw(given[index]) };
        Ok(Self {
            pool: argument(0)?,
            nthread: argument(1)?,
            skip_checks: argument(2)?,
            model: argument(3)?,
            data: argument(4)?,
            initial_state: argument(5)?,
            control: argument(6)?,
            control_spec: argument(7)?,
            nstep: argument(8)?,
            initial_warmstart: argument(9)?,
            state: argument(10)?,
            sensordata: argument(11)?,
            chunk_size: argument(12)?,
        })
    }

    pub(crate) fn read(&self, setup: &Setup) -> Usual<Said> {
        let given = |argument: &'a Object| (!argument.is(&setup.none)).then_some(argument);
        let count = |argument| given(argument).map(|n| positive(setup, n)).transpose();
        let rows = |argument, ndim| {
            let rows = given(argument).map(|array| Rows::of(setup, array, ndim));
            rows.transpose()
        };
        let written = |argument| given(argument).map(|array| Written::of(setup, array));

        let pool = self.pool.integer()? as *mut RolloutPool;
        usual(!pool.is_null())?;
        let control_spec = u32::try_from(exact_int(setup, self.control_spec)?);
        let control_spec = control_spec.map_err(|_| Unusual)?;
        // 0 means another spec to the library.
        usual(control_spec != 0 && control_spec & !setup.user == 0)?;
        let skip_checks = self.skip_checks.truth()?;
        let nstep = count(self.nstep)?;
        let chunk_size = count(self.chunk_size)?.unwrap_or(0);

        let initial_state = Rows::of(setup, self.initial_state, 2)?;
        let initial_warmstart = rows(self.initial_warmstart, 2)?;
        let control = rows(self.control, 3)?;
        let state = written(self.state).transpose()?;
        let sensordata = written(self.sensordata).transpose()?;

        let (model, nmodel) = mujoco::one_model(setup, self.model, skip_checks)?;
        let mut owners = mujoco::all_data(setup, self.data, skip_checks)?;
        let nthread = self.nthread.integer()?;
        usual(nthread == owners.len() as i64 || (nthread == 0 && owners.len() == 1))?;
        let (described, data) = mujoco::describe(setup, &model, &owners)?;
        owners.push(model);

        let inputs = [
            Some(&initial_state),
            initial_warmstart.as_ref(),
            control.as_ref(),
        ];
        let inputs = inputs.into_iter().flatten();
        let (nbatch, nstep) = if skip_checks {
            let nbatch = initial_state.shape[0];
            let nstep = nstep.ok_or(Unusual)?;
            for rows in inputs {
                usual(rows.has_all_axes && rows.shape[0] == nbatch)?;
            }
            usual(control.as_ref().is_none_or(|rows| rows.shape[1] == nstep))?;
            usual(nmodel >= nbatch)?;
            (nbatch, nstep)
        } else {
            let (mut nbatch, mut nstep) = (1, nstep.unwrap_or(1));
            for rows in inputs {
                infer(&mut nbatch, rows.shape[0])?;
                infer(&mut nstep, rows.shape[1])?;
            }
            for array in [state.as_ref(), sensordata.as_ref()].into_iter().flatten() {
                let [batch, step, _] = array.shape.ok_or(Unusual)?;
                infer(&mut nbatch, batch)?;
                infer(&mut nstep, step)?;
            }
            infer(&mut nbatch, nmodel)?;
            (nbatch, nstep)
        };

        let output = |written: Option<Written>, size| match written {
            Some(written) => written.of_size([nbatch, nstep, size]),
            None if skip_checks => Ok(Written::nothing(setup)),
            None => Written::empty(setup, [nbatch, nstep, size]),
        };
        Ok(Said {
            pool,
            state: output(state, initial_state.shape[2])?,
            sensordata: output(sensordata, described.nsensordata)?,
            model: described,
            data,
            _owners: owners,
            nbatch,
            nstep,
            control_spec,
            chunk_size,
            initial_state,
            initial_warmstart,
            control,
        })
    }
}

/// The common length, by one more array that has either that length or 1.
fn infer(common: &mut usize, length: usize) -> Usual<()> {
    if *common == 1 {
        *common = length;
    }
    usual(length == *common || length == 1)
}

/// The value of an argument that is an `int` and nothing that only behaves like one.
fn exact_int(setup: &Setup, argument: &Object) -> Usual<i64> {
    usual(argument.is_exactly(&setup.int))?;
    argument.integer()
}

fn positive(setup: &Setup, argument: &Object) -> Usual<usize> {
    let value = exact_int(setup, argument)?;
    usual(value > 0)?;
    usize::try_from(value).map_err(|_| Unusual)
}
