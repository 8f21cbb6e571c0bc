//! CPUs: how many threads a pool has by default, and pools on CPUs of their own.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::mpsc;

use rollout_pool::{CpusError, Pool, default_nthread, worker_id};

/// The CPUs that this thread may use.
fn allowed() -> Vec<usize> {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let ranges = list.unwrap().trim().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        first.parse().unwrap()..=last.parse().unwrap()
    });
    ranges.flatten().collect()
}

#[test]
fn threads_stay_on_the_cpus_of_the_list() {
    let cpus: Vec<usize> = allowed().into_iter().rev().take(4).collect();
    let pool = Pool::with_cpus(&cpus).unwrap();
    assert_eq!(pool.cpus(), cpus);
    assert_eq!(pool.num_threads(), cpus.len());
    let (send, seen) = mpsc::channel();
    for _ in 0..100 {
        let send = send.clone();
        pool.schedule(move || send.send((worker_id(), allowed())).unwrap());
    }
    pool.wait_count(100).unwrap();
    for (worker, seen) in seen.try_iter() {
        assert_eq!(seen, [cpus[worker as usize]]);
    }
    assert!(Pool::new(2).unwrap().cpus().is_empty());
}

#[test]
fn lists_that_make_no_sense_are_refused() {
    let allowed = allowed();
    let (one, far) = (allowed[0], 1 << 20);
    assert!(matches!(Pool::with_cpus(&[]), Err(CpusError::Empty)));
    assert!(matches!(
        Pool::with_cpus(&vec![one; 4097]),
        Err(CpusError::TooMany(4097))
    ));
    // R56
    let twice = Pool::with_cpus(&[one, one]).unwrap_err();
    assert_eq!(
        twice.to_string(),
        format!("cpus[1]: is {one}, as cpus[0] is")
    );
    for cpu in [far, usize::MAX] {
        match Pool::with_cpus(&[one, cpu]) {
            Err(CpusError::NotAllowed {
                index: 1,
                cpu: found,
                ..
            }) => assert_eq!(found, cpu),
            other => panic!("{other:?}"),
        }
    }
}

/// A group of its own for one process, with a quota of CPU time.
struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes one inside the group of this process. `None` where that cannot be done: in most
    /// containers, for most users, or where the controller is elsewhere.
    fn with_quota(micros: u32) -> Option<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let name = format!("rollout-test-{}", process::id());
        groups.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            let path = path.trim_start_matches('/');
            let (folder, file, text) = match controllers {
                "" => ("", "cpu.max", format!("{micros} 100000")),
                list if list.split(',').any(|name| name == "cpu") => {
                    (list, "cpu.cfs_quota_us", micros.to_string())
                }
                _ => return None,
            };
            let path = Path::new("/sys/fs/cgroup")
                .join(folder)
                .join(path)
                .join(&name);
            fs::create_dir(&path).ok()?;
            let group = Self(path);
            // (Not created: it is there, or the group has no quota.)
            let mut options = fs::OpenOptions::new();
            let mut file = options.write(true).open(group.0.join(file)).ok()?;
            std::io::Write::write_all(&mut file, text.as_bytes()).ok()?;
            Some(group)
        })
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The process inside has been waited for.
        match fs::remove_dir(&self.0) {
            Err(error) if error.kind() != ErrorKind::NotFound => eprintln!("{error}"),
            _ => {}
        }
    }
}

/// What this variable names is the group that a process of the test below is to go to.
const GROUP: &str = "ROLLOUT_TESTS_CGROUP";

#[test]
fn r61_a_quota_of_one_and_a_half_cpus_is_one_thread() {
    if let Ok(group) = std::env::var(GROUP) {
        let members = Path::new(&group).join("cgroup.procs");
        match fs::write(members, process::id().to_string()) {
            Ok(()) => println!("threads: {}", default_nthread()),
            Err(error) => println!("no member: {error}"),
        }
        return;
    }
    // (The parser of the system's files has tests of its own, on files of all kinds.)
    for (micros, threads) in [
        (150_000, 1),
        (50_000, 1),
        (250_000, 2),
        (100_000_000, 1 << 20),
    ] {
        let Some(group) = Cgroup::with_quota(micros) else {
            println!("skipped: no cgroup with a quota can be made here");
            return;
        };
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "r61_a_quota_of_one_and_a_half_cpus_is_one_thread",
            ])
            .arg("--nocapture")
            .env(GROUP, &group.0)
            .output()
            .unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        if output.contains("no member: ") {
            println!("skipped: a cgroup can be made here, but not joined");
            return;
        }
        let expected = threads.min(default_nthread());
        assert!(
            output.contains(&format!("threads: {expected}\n")),
            "{output}"
        );
    }
}
