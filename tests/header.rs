//! Whether `include/rollout.h` says what the library does: layouts, constants,
//! names, and the symbols of the built library.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, mem};

use rollout::{
    ROLLOUT_ABI_VERSION, ROLLOUT_ERROR_TEXT_SIZE, ROLLOUT_NTHREAD_DEFAULT,
    ROLLOUT_REQUEST_ATTENDED, RolloutError, RolloutInput, RolloutOutput, RolloutProgress,
    RolloutRequest, RolloutStatus, RolloutWorkerStats, rollout_abi_version, rollout_clock_ns,
    rollout_default_nthread, rollout_status_name, rollout_version, rollout_worker_id,
};
use rollout_core::engine::{
    DATA_ENGINE_THREADS, ENGINE_VERSION, MODEL_HIDDEN_STATE, MODEL_UNRESETTABLE_STATE,
};
use rollout_core::trap::HOOKS_RETIRE_THREAD;
use rollout_core::{
    Data as RolloutData, Engine as RolloutEngine, Fill, Hooks as RolloutHooks,
    Model as RolloutModel, Outcome as RolloutOutcome, OutcomeStatus,
};
use rollout_tests::header;

/// Lists an enum of the header: the constants' names and the numbers that they
/// have for ever. Does not compile if a variant is missing.
macro_rules! numbers {
    ($type:ident: $($variant:ident, $name:literal, $number:literal;)*) => {{
        let _complete = |value: $type| match value { $($type::$variant => (),)* };
        vec![$({
            assert_eq!($type::$variant as i64, $number, $name);
            ($name, $number)
        },)*]
    }};
}

#[rustfmt::skip]
fn statuses() -> Vec<(&'static str, i32)> {
    numbers! { RolloutStatus:
        Ok, "ROLLOUT_STATUS_OK", 0;
        RolloutsFailed, "ROLLOUT_STATUS_ROLLOUTS_FAILED", 1;
        Cancelled, "ROLLOUT_STATUS_CANCELLED", 2;
        OutOfTime, "ROLLOUT_STATUS_OUT_OF_TIME", 3;
        NullPointer, "ROLLOUT_STATUS_NULL_POINTER", 100;
        Misaligned, "ROLLOUT_STATUS_MISALIGNED", 101;
        WrongSize, "ROLLOUT_STATUS_WRONG_SIZE", 102;
        Overflow, "ROLLOUT_STATUS_OVERFLOW", 103;
        EmptyList, "ROLLOUT_STATUS_EMPTY_LIST", 104;
        BadSpec, "ROLLOUT_STATUS_BAD_SPEC", 105;
        BadEngine, "ROLLOUT_STATUS_BAD_ENGINE", 106;
        LayoutMismatch, "ROLLOUT_STATUS_LAYOUT_MISMATCH", 107;
        DuplicateData, "ROLLOUT_STATUS_DUPLICATE_DATA", 108;
        Overlap, "ROLLOUT_STATUS_OVERLAP", 109;
        BadOption, "ROLLOUT_STATUS_BAD_OPTION", 110;
        Unsupported, "ROLLOUT_STATUS_UNSUPPORTED", 111;
        Busy, "ROLLOUT_STATUS_BUSY", 200;
        WouldDeadlock, "ROLLOUT_STATUS_WOULD_DEADLOCK", 201;
        Timeout, "ROLLOUT_STATUS_TIMEOUT", 202;
        Forked, "ROLLOUT_STATUS_FORKED", 203;
        NoThread, "ROLLOUT_STATUS_NO_THREAD", 300;
        Panic, "ROLLOUT_STATUS_PANIC", 400;
        TaskPanicked, "ROLLOUT_STATUS_TASK_PANICKED", 401;
        EngineError, "ROLLOUT_STATUS_ENGINE_ERROR", 500;
    }
}

/// The constants of the library, as the lines that the C program prints.
#[rustfmt::skip]
fn constants() -> BTreeSet<String> {
    let mut all = statuses();
    all.extend(numbers! { OutcomeStatus:
        Completed, "ROLLOUT_OUTCOME_STATUS_COMPLETED", 0;
        Warned, "ROLLOUT_OUTCOME_STATUS_WARNED", 1;
        Diverged, "ROLLOUT_OUTCOME_STATUS_DIVERGED", 2;
        EngineError, "ROLLOUT_OUTCOME_STATUS_ENGINE_ERROR", 10;
        NotStarted, "ROLLOUT_OUTCOME_STATUS_NOT_STARTED", 30;
        Cancelled, "ROLLOUT_OUTCOME_STATUS_CANCELLED", 31;
        OutOfTime, "ROLLOUT_OUTCOME_STATUS_OUT_OF_TIME", 32;
    });
    all.extend(numbers! { Fill:
        Nan, "ROLLOUT_FILL_NAN", 0;
        Hold, "ROLLOUT_FILL_HOLD", 1;
        Untouched, "ROLLOUT_FILL_UNTOUCHED", 2;
    });
    all.extend([
        ("ROLLOUT_ERROR_TEXT_SIZE", ROLLOUT_ERROR_TEXT_SIZE as i32),
        ("ROLLOUT_NTHREAD_DEFAULT", ROLLOUT_NTHREAD_DEFAULT),
        ("ROLLOUT_ABI_VERSION", ROLLOUT_ABI_VERSION as i32),
        ("ROLLOUT_ENGINE_VERSION", ENGINE_VERSION as i32),
        ("ROLLOUT_MODEL_HIDDEN_STATE", MODEL_HIDDEN_STATE as i32),
        ("ROLLOUT_MODEL_UNRESETTABLE_STATE", MODEL_UNRESETTABLE_STATE as i32),
        ("ROLLOUT_DATA_ENGINE_THREADS", DATA_ENGINE_THREADS as i32),
        ("ROLLOUT_HOOKS_RETIRE_THREAD", HOOKS_RETIRE_THREAD as i32),
        ("ROLLOUT_REQUEST_ATTENDED", ROLLOUT_REQUEST_ATTENDED as i32),
    ]);
    all.into_iter().map(|(name, number)| format!("{name} = {number}")).collect()
}

fn field_size<T, F>(_field: impl Fn(&T) -> &F) -> usize {
    mem::size_of::<F>()
}

/// Lists structs of the header, in the lines that the C program prints. Does not
/// compile if a field is missing.
macro_rules! layouts {
    ($($type:ident { $($field:ident),* })*) => {{
        let mut lines = BTreeSet::new();
        $({
            let _complete = |value: $type| { let $type { $($field: _),* } = value; };
            lines.insert(format!(
                "{}: size {}, alignment {}",
                stringify!($type),
                mem::size_of::<$type>(),
                mem::align_of::<$type>(),
            ));
            $(lines.insert(format!(
                "{}.{}: at {}, size {}",
                stringify!($type),
                stringify!($field),
                mem::offset_of!($type, $field),
                field_size(|value: &$type| &value.$field),
            ));)*
        })*
        lines
    }};
}

/// The structs of the library.
fn layouts() -> BTreeSet<String> {
    layouts! {
        RolloutError { size, status, nfailed, index, text }
        RolloutEngine {
            size, version, number_size, header_release, library_release, step, state_size,
            get_state, set_state, reset, take_error, full_physics, user, warmstart, ctrl,
            model_inputs, diverged_warnings, warning_text, hooks
        }
        RolloutHooks {
            exchange_thread_log, get_process_log, exchange_process_log, get_thread_error,
            set_thread_error, get_thread_warning, set_thread_warning, process_error,
            process_warning, log_level, log_text, log_function, log_error, log_warning, flags
        }
        RolloutModel { model, layout, structure, nsensordata, nplugin, flags }
        RolloutData { data, sensordata, warning_number, nwarning, flags, layout, structure, nplugin }
        RolloutInput { values, count, rollout_stride, step_stride }
        RolloutOutput { values, count }
        RolloutOutcome { status, warning, steps }
        RolloutRequest {
            size, engine, models, nmodel, data, ndata, nbatch, nstep, control_spec, fill,
            initial_state, initial_warmstart, control, state, sensordata, outcomes, noutcome,
            messages, nmessage, message_size, chunk_size, priority, flags, budget_ns, deadline_ns
        }
        RolloutProgress { rollouts, steps, nbatch, nstep }
        RolloutWorkerStats { busy_ns, idle_ns, tasks, rollouts, steps }
    }
}

/// Compiles a C program against the header in both languages, runs it, and
/// returns the lines that it prints in either.
fn lines_of_c(name: &str, statements: &str) -> [BTreeSet<String>; 2] {
    let folder = scratch(name);
    let source = folder.join("program.c");
    let program = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include \"rollout.h\"\n\n\
         int main(void) {{\n{statements}  return 0;\n}}\n"
    );
    fs::write(&source, program).unwrap();
    let languages = [
        ("CC", "cc", ["-std=c99", "-x", "c"]),
        ("CXX", "c++", ["-std=c++11", "-x", "c++"]),
    ];
    languages.map(|(variable, default, flags)| {
        let compiler = env::var(variable).unwrap_or_else(|_| default.to_owned());
        let mut words = compiler.split_whitespace();
        let binary = folder.join(default);
        let mut compile = Command::new(words.next().unwrap());
        compile
            .args(words)
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror"])
            .arg("-I")
            .arg(root().join("include"))
            .args(flags)
            .arg(&source)
            .arg("-o")
            .arg(&binary);
        output_of(&mut compile);
        output_of(&mut Command::new(&binary))
            .lines()
            .map(str::to_owned)
            .collect()
    })
}

#[test]
fn r73_structs_have_one_layout_in_c_cxx_and_rust() {
    let mut statements = String::new();
    for (name, fields) in header::structs() {
        statements += &format!(
            "  {{\n    struct align {{ char c; {name} value; }};\n    \
             printf(\"{name}: size %zu, alignment %zu\\n\", sizeof({name}), \
             offsetof(struct align, value));\n  }}\n"
        );
        for field in fields {
            statements += &format!(
                "  printf(\"{name}.{field}: at %zu, size %zu\\n\", offsetof({name}, {field}), \
                 sizeof((({name}*)0)->{field}));\n"
            );
        }
    }
    for lines in lines_of_c("layouts", &statements) {
        assert_eq!(lines, layouts());
    }
}

#[test]
fn constants_have_one_value_in_c_cxx_and_rust() {
    let mut statements = String::new();
    for name in header::constants() {
        statements += &format!("  printf(\"{name} = %lld\\n\", (long long){name});\n");
    }
    for lines in lines_of_c("constants", &statements) {
        assert_eq!(lines, constants());
    }
}

/// A C host has one namespace for everything.
#[test]
fn all_names_of_the_header_are_ours() {
    let types = header::types();
    assert!(
        types.contains("RolloutPool") && types.contains("RolloutFill"),
        "{types:?}"
    );
    for name in types {
        assert!(
            name.starts_with("Rollout"),
            "the header names a type {name}"
        );
    }
    for name in header::constants() {
        assert!(
            name.starts_with("ROLLOUT_"),
            "the header has a constant {name}"
        );
    }
    for name in header::functions() {
        assert!(
            name.starts_with("rollout_"),
            "the header has a function {name}"
        );
    }
}

#[test]
fn statuses_and_fills_are_32_bits_wide_in_c() {
    let types = ["RolloutStatus", "RolloutOutcomeStatus", "RolloutFill"];
    let statements: String = types
        .iter()
        .map(|name| format!("  printf(\"{name} %zu\\n\", sizeof({name}));\n"))
        .collect();
    let expected = types.map(|name| format!("{name} 4")).into();
    for lines in lines_of_c("widths", &statements) {
        assert_eq!(lines, expected);
    }
}

/// The library exports what the header declares, and needs nothing but libc.
#[test]
fn r39_the_shared_library_exports_the_headers_functions_and_needs_only_libc() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("shared-library");
    let mut build = Command::new(env!("CARGO"));
    build
        .args([
            "build",
            "--quiet",
            "--locked",
            "--offline",
            "--package",
            "rollout-ffi",
        ])
        .arg("--target-dir")
        .arg(&folder)
        .current_dir(root());
    // As a host gets it, whatever flags the tests are built with.
    for variable in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET"] {
        build.env_remove(variable);
    }
    output_of(&mut build);
    let library = folder.join("debug/librollout.so");

    let symbols = output_of(
        Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(&library),
    );
    let exported = symbols
        .lines()
        .map(|line| line.split_whitespace().last().unwrap().to_owned());
    assert_eq!(exported.collect::<BTreeSet<_>>(), header::functions());

    let symbols = output_of(
        Command::new("nm")
            .args(["-D", "--undefined-only"])
            .arg(&library),
    );
    for line in symbols.lines() {
        let symbol = line.split_whitespace().last().unwrap();
        let graphics = symbol
            .strip_prefix("gl")
            .is_some_and(|rest| rest.starts_with(char::is_uppercase));
        let foreign = ["mj", "_mj", "GL", "egl", "EGL", "Py", "_Py"]
            .iter()
            .any(|prefix| symbol.starts_with(prefix));
        assert!(!graphics && !foreign, "the library needs {symbol}");
    }

    let dynamic = output_of(
        Command::new("readelf")
            .args(["--dynamic", "--wide"])
            .arg(&library),
    );
    let allowed = ["libc", "libgcc_s", "libm", "libpthread", "libdl"];
    for line in dynamic.lines().filter(|line| line.contains("(NEEDED)")) {
        let name = line.split(['[', ']']).nth(1).unwrap();
        let stem = name.split('.').next().unwrap();
        let loader = stem.starts_with("ld-linux");
        assert!(
            loader || allowed.contains(&stem),
            "the library needs {name}"
        );
    }
    assert!(
        dynamic.contains("[libc.so.6]"),
        "no NEEDED was read:\n{dynamic}"
    );
}

/// Runs a command that must succeed, and returns what it printed.
fn output_of(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

/// A folder of one test.
fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn versions_and_names() {
    assert_eq!(rollout_abi_version(), ROLLOUT_ABI_VERSION);
    assert_eq!(rollout_worker_id(), -1);
    assert!(rollout_default_nthread() >= 1);
    let times = [(); 3].map(|()| rollout_clock_ns());
    assert!(times.is_sorted() && times[0] > 0, "{times:?}");
    // SAFETY: texts that live as long as the library.
    let version = unsafe { CStr::from_ptr(rollout_version()) };
    assert_eq!(version.to_str(), Ok(env!("CARGO_PKG_VERSION")));

    // SAFETY: as above.
    let name = |status| unsafe { CStr::from_ptr(rollout_status_name(status)) };
    let known: BTreeSet<i32> = statuses().into_iter().map(|(_, number)| number).collect();
    let names: BTreeSet<_> = known.iter().map(|&status| name(status)).collect();
    assert_eq!(names.len(), known.len(), "two statuses of one name");
    for status in (-10..1000).chain([i32::MIN, i32::MAX]) {
        let unknown = name(status) == c"unknown status";
        assert_eq!(unknown, !known.contains(&status), "{status}");
    }
}
