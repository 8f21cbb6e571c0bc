//! What the library needs to know of a model and of the data that were made from it.
//!
//! The rules are those of `_mujoco.py`, which says why. Signatures are not made here, for
//! a data that was made from the very model fits it.

use rollout_core::engine::MODEL_HIDDEN_STATE;
use rollout_core::{Data, Model};

use crate::array::numbers;
use crate::python::{BUFFER_OUTPUT, Object, Owned, Usual, usual};
use crate::setup::Setup;

/// The one model of a call: given alone, or again and again in a list. And the length of
/// the list.
pub(crate) fn one_model(setup: &Setup, given: &Object, list_only: bool) -> Usual<(Owned, usize)> {
    if given.is_exactly(&setup.mjmodel) {
        usual(!list_only)?;
        return Ok((given.own(), 1));
    }
    usual(given.is_exactly(&setup.list))?;
    let model = given.item(0)?;
    usual(model.is_exactly(&setup.mjmodel))?;
    let length = given.len()?;
    for index in 1..length {
        usual(given.item(index)?.is(&model))?;
    }
    Ok((model, length))
}

/// The data of a call, each with what the library needs to know of it.
pub(crate) fn all_data(setup: &Setup, given: &Object, list_only: bool) -> Usual<Vec<Owned>> {
    if given.is_exactly(&setup.mjdata) {
        usual(!list_only)?;
        return Ok(vec![given.own()]);
    }
    usual(given.is_exactly(&setup.list))?;
    let length = given.len()?;
    usual(length > 0)?;
    let data = (0..length).map(|index| {
        let one = given.item(index)?;
        usual(one.is_exactly(&setup.mjdata))?;
        Ok(one)
    });
    data.collect()
}

/// Describes a model and the data that were made from it.
pub(crate) fn describe(setup: &Setup, model: &Object, data: &[Owned]) -> Usual<(Model, Vec<Data>)> {
    let nplugin = integer(model, &setup.nplugin)?;
    let mut nsensordata = 0;
    let mut described = Vec::with_capacity(data.len());
    for one in data {
        usual(one.attribute(&setup.model)?.is(model))?;
        usual(!one.attribute(&setup.threadpool)?.truth()?)?;
        let (sensordata, count) =
            one.attribute(&setup.sensordata)?
                .with_buffer(BUFFER_OUTPUT, |buffer| {
                    Ok((
                        numbers(buffer)?,
                        buffer.axes().map(|(length, _)| length).product(),
                    ))
                })?;
        let address = integer(one, &setup.address)?;
        nsensordata = count;
        described.push(Data {
            data: address as *mut _,
            sensordata,
            warning_number: (address + setup.warning_offset) as *mut i32,
            nwarning: setup.nwarning,
            flags: 0,
            layout: 0,
            structure: 0,
            nplugin,
        });
    }
    let hidden = nplugin > 0
        || setup.hiding_flags != 0 && {
            let enabled = model.attribute(&setup.opt)?.attribute(&setup.enableflags)?;
            enabled.integer()? & setup.hiding_flags != 0
        };
    let model = Model {
        model: integer(model, &setup.address)? as *const _,
        layout: 0,
        structure: 0,
        nsensordata,
        nplugin,
        flags: if hidden { MODEL_HIDDEN_STATE } else { 0 },
    };
    Ok((model, described))
}

/// A size or an address.
fn integer(object: &Object, name: &Object) -> Usual<usize> {
    Ok(object.attribute(name)?.integer()? as usize)
}
