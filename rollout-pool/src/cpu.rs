//! Which CPUs, and how many: what the system allows this process, and what a host wants.
//!
//! A process is held to its CPUs in two ways: by the affinity mask of its threads, and by
//! the CPU quota of its cgroups, which is time and not CPUs. std knows both
//! (`available_parallelism`), but says that it may miss limits, and cannot be shown any
//! other system than the one that it runs on; here the system's files have a root that a
//! test can choose.

use std::error;
use std::ffi::{OsString, c_ulong};
use std::fmt;
use std::fs;
use std::io;
use std::mem;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use crate::sync::JoinHandle;

/// No pool has more threads on CPUs of their own.
const MOST_CPUS: usize = 4096;

/// The number of threads that this process may keep busy: as many as the calling thread's
/// CPU affinity mask has CPUs and the CPU quota of its cgroups (v1 or v2) has whole CPUs,
/// whichever is less, and at least one.
///
/// A part of a CPU does not count: of a quota of 1.5 CPUs two busy threads would have used
/// up a period's share (usually 100 milliseconds) after three quarters of it, and the
/// system would stop all of them for the rest.
pub fn default_nthread() -> usize {
    let allowed = Mask::of_caller().map_or(1, |mask| mask.cpus().count());
    let quota = quota_below(Path::new("/")).unwrap_or(usize::MAX);
    allowed.min(quota).max(1)
}

/// Why a pool on a list of CPUs was not made.
#[derive(Debug)]
#[non_exhaustive]
pub enum CpusError {
    /// The list is empty.
    Empty,
    /// The list has so many CPUs, more than a pool can.
    TooMany(usize),
    /// A CPU stands twice in the list.
    Twice {
        /// Where it stands first.
        first: usize,
        /// Where it stands again.
        index: usize,
        /// The CPU.
        cpu: usize,
    },
    /// A CPU that the calling thread's affinity mask does not have.
    NotAllowed {
        /// Where it stands in the list.
        index: usize,
        /// The CPU.
        cpu: usize,
        /// The CPUs that the mask has, as the system writes them: `0-3,8`.
        allowed: String,
    },
    /// The system refused a thread, or to pin it.
    Refused(io::Error),
}

impl fmt::Display for CpusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CpusError::Empty => f.write_str("cpus: is empty, but a pool needs at least one CPU"),
            CpusError::TooMany(count) => {
                write!(
                    f,
                    "cpus: has {count} CPUs, but a pool has at most {MOST_CPUS}"
                )
            }
            CpusError::Twice { first, index, cpu } => {
                write!(f, "cpus[{index}]: is {cpu}, as cpus[{first}] is")
            }
            CpusError::NotAllowed {
                index,
                cpu,
                allowed,
            } => write!(
                f,
                "cpus[{index}]: is {cpu}, but this thread may use only the CPUs {allowed}"
            ),
            CpusError::Refused(why) => {
                write!(f, "the system refused a thread on a CPU of its own: {why}")
            }
        }
    }
}

impl error::Error for CpusError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            CpusError::Refused(why) => Some(why),
            _ => None,
        }
    }
}

/// Checks a list of CPUs, before anything is done with it.
pub(crate) fn check(cpus: &[usize]) -> Result<(), CpusError> {
    if cpus.is_empty() {
        return Err(CpusError::Empty);
    }
    if cpus.len() > MOST_CPUS {
        return Err(CpusError::TooMany(cpus.len()));
    }
    let mask = Mask::of_caller().map_err(CpusError::Refused)?;
    for (index, &cpu) in cpus.iter().enumerate() {
        if let Some(first) = cpus[..index].iter().position(|&before| before == cpu) {
            return Err(CpusError::Twice { first, index, cpu });
        }
        if !mask.has(cpu) {
            let allowed = mask.to_string();
            return Err(CpusError::NotAllowed {
                index,
                cpu,
                allowed,
            });
        }
    }
    Ok(())
}

/// Keeps a thread that has not ended on one CPU. A thread that it starts is kept there
/// too, as the system hands the mask on: so is the one that takes its place.
///
/// # Errors
///
/// When the system refuses: somebody has taken the CPU from this process meanwhile.
#[cfg(not(loom))]
pub(crate) fn pin<T>(thread: &JoinHandle<T>, cpu: usize) -> io::Result<()> {
    let mask = Mask::of_one(cpu);
    let bytes = mem::size_of_val(&*mask.0);
    // SAFETY: the thread has a handle, and so has not been joined; the mask has as many
    // bytes, and is only read.
    let error =
        unsafe { libc::pthread_setaffinity_np(thread.pthread(), bytes, mask.0.as_ptr().cast()) };
    match error {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// loom's threads have no CPUs.
#[cfg(loom)]
pub(crate) fn pin<T>(_: &JoinHandle<T>, _: usize) -> io::Result<()> {
    Ok(())
}

const WORD_BITS: usize = c_ulong::BITS as usize;

/// A set of CPUs, as the system takes and gives it: bit i of word w is CPU w * 64 + i.
/// (libc's own type ends at 1024 CPUs.)
struct Mask(Vec<c_ulong>);

impl Mask {
    fn of_one(cpu: usize) -> Self {
        let mut words = vec![0; cpu / WORD_BITS + 1];
        words[cpu / WORD_BITS] = 1 << (cpu % WORD_BITS);
        Self(words)
    }

    /// The CPUs that the calling thread may run on.
    fn of_caller() -> io::Result<Self> {
        // More CPUs than Linux can have.
        const MOST_WORDS: usize = (1 << 20) / WORD_BITS;
        let mut words: Vec<c_ulong> = vec![0; 1024 / WORD_BITS];
        loop {
            let bytes = mem::size_of_val(&*words);
            // SAFETY: writes at most as many bytes, into words that can hold any.
            if unsafe { libc::sched_getaffinity(0, bytes, words.as_mut_ptr().cast()) } == 0 {
                return Ok(Self(words));
            }
            let error = io::Error::last_os_error();
            // The system has more CPUs than there is room for.
            if error.raw_os_error() != Some(libc::EINVAL) || words.len() >= MOST_WORDS {
                return Err(error);
            }
            words.resize(2 * words.len(), 0);
        }
    }

    fn has(&self, cpu: usize) -> bool {
        let word = self.0.get(cpu / WORD_BITS).copied().unwrap_or(0);
        word >> (cpu % WORD_BITS) & 1 != 0
    }

    fn cpus(&self) -> impl Iterator<Item = usize> {
        (0..self.0.len() * WORD_BITS).filter(|&cpu| self.has(cpu))
    }
}

impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        let mut cpus = self.cpus().peekable();
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
            comma = ",";
        }
        Ok(())
    }
}

// ---------------------------------------------------------------- quotas

/// The whole CPUs that the cgroups of this process leave it: the least quota of its own
/// groups and of those around them. `None` where there is none, or none that can be read.
/// The system's files are looked for below `root`.
fn quota_below(root: &Path) -> Option<usize> {
    let groups = read(root, Path::new("/proc/self/cgroup"))?;
    let mounts = read(root, Path::new("/proc/self/mountinfo"))?;
    let mounts: Vec<Mount> = mounts.lines().filter_map(Mount::parse).collect();
    let quotas = groups.lines().filter_map(Group::parse).flat_map(|group| {
        let folders = group.folders(&mounts).into_iter();
        folders.filter_map(move |folder| group.quota(root, &folder))
    });
    quotas.min()
}

/// Reads a small file of the system's.
fn read(root: &Path, path: &Path) -> Option<String> {
    fs::read_to_string(root.join(path.strip_prefix("/").ok()?)).ok()
}

/// A hierarchy of cgroups in which there can be quotas.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    /// The one with the controller `cpu`.
    V1,
    /// The only one of this version. It has quotas unless v1 has the controller.
    V2,
}

/// The group of this process in a hierarchy: a line of `/proc/self/cgroup`.
#[derive(Clone, Copy)]
struct Group<'a> {
    version: Version,
    path: &'a Path,
}

impl<'a> Group<'a> {
    /// Reads `4:cpu,cpuacct:/path`, or `0::/path` of v2. `None` for the hierarchies of
    /// other controllers.
    fn parse(line: &'a str) -> Option<Self> {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let version = match controllers {
            "" => Version::V2,
            list if list.split(',').any(|controller| controller == "cpu") => Version::V1,
            _ => return None,
        };
        let path = Path::new(path);
        path.is_absolute().then_some(Self { version, path })
    }

    /// The folders of the group and of those around it, as far as they are mounted. (A
    /// container often sees its own part only, under a path from outside of it.)
    fn folders(self, mounts: &[Mount]) -> Vec<PathBuf> {
        let inner = |mount: &Mount| {
            let inner = self.path.strip_prefix(&mount.root).ok()?;
            // `..` stands for what this process's namespace does not show.
            let shown = inner
                .components()
                .all(|c| matches!(c, Component::Normal(_)));
            shown.then(|| inner.to_owned())
        };
        let mounts = || mounts.iter().filter(|mount| mount.version == self.version);
        // A group that is not among the mounted ones still is below them, or one of them.
        let found = mounts().find_map(|mount| Some((mount, inner(mount)?)));
        let found = found.or_else(|| Some((mounts().next()?, PathBuf::new())));
        let Some((mount, inner)) = found else {
            return Vec::new();
        };
        inner
            .ancestors()
            .map(|inner| mount.point.join(inner))
            .collect()
    }

    /// The quota of one folder's group, if it has one.
    fn quota(self, root: &Path, folder: &Path) -> Option<usize> {
        let (quota, period) = match self.version {
            Version::V1 => {
                let number = |name| read(root, &folder.join(name))?.trim().parse::<i64>().ok();
                (number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?)
            }
            Version::V2 => {
                let text = read(root, &folder.join("cpu.max"))?;
                let (quota, period) = text.trim().split_once(' ')?;
                // "max" is no number, and no quota.
                (quota.parse().ok()?, period.parse().ok()?)
            }
        };
        // -1 is v1's word for none.
        if quota < 0 || period <= 0 {
            return None;
        }
        usize::try_from(quota / period).ok()
    }
}

/// Where a hierarchy, or a part of it, is mounted: a line of `/proc/self/mountinfo`.
struct Mount {
    version: Version,
    /// The group that is seen at the mount point.
    root: PathBuf,
    point: PathBuf,
}

impl Mount {
    /// Reads `id parent major:minor root point options fields... - type source options`.
    fn parse(line: &str) -> Option<Self> {
        let (mount, system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (mount.next()?, mount.next()?);
        let mut system = system.split(' ');
        let (kind, options) = (system.next()?, system.nth(1)?);
        let version = match kind {
            "cgroup2" => Version::V2,
            "cgroup" if options.split(',').any(|option| option == "cpu") => Version::V1,
            _ => return None,
        };
        Some(Self {
            version,
            root: unescaped(root),
            point: unescaped(point),
        })
    }
}

/// A path as the system writes it where spaces separate: `\040` is one of its own.
fn unescaped(path: &str) -> PathBuf {
    let mut parts = path.split('\\');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        match part
            .get(..3)
            .and_then(|code| u8::from_str_radix(code, 8).ok())
        {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend(&part.as_bytes()[3..]);
            }
            None => {
                bytes.push(b'\\');
                bytes.extend(part.as_bytes());
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system of these files, and what quota there is.
    fn quota_of(name: &str, files: &[(&str, &str)]) -> Option<usize> {
        let root = std::env::temp_dir().join(format!("rollout-cpu-{}-{name}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let quota = quota_below(&root);
        fs::remove_dir_all(&root).unwrap();
        quota
    }

    const GROUPS: &str = "proc/self/cgroup";
    const MOUNTS: &str = "proc/self/mountinfo";
    const ON_V2: &str = "24 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw\n\
         35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    const ON_V1: &str = "24 1 254:0 / / rw - ext4 /dev/root rw\n\
         33 31 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
         34 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n";

    #[test]
    fn r61_a_quota_of_one_and_a_half_cpus_is_one_thread() {
        let v2 = |max: &str| {
            let file = ("sys/fs/cgroup/job/cpu.max", max);
            quota_of("v2", &[(GROUPS, "0::/job\n"), (MOUNTS, ON_V2), file])
        };
        assert_eq!(v2("150000 100000\n"), Some(1));
        assert_eq!(v2("199999 100000\n"), Some(1));
        assert_eq!(v2("200000 100000\n"), Some(2));
        assert_eq!(v2("20000 10000\n"), Some(2));
        // (One thread, then: `default_nthread` is never less.)
        assert_eq!(v2("50000 100000\n"), Some(0));
        assert_eq!(v2("max 100000\n"), None);
    }

    #[test]
    fn r61_the_same_in_version_1() {
        let v1 = |quota: &str, period: &str| {
            quota_of(
                "v1",
                &[
                    (
                        GROUPS,
                        "9:cpuset:/other\n4:cpu,cpuacct:/a/b\n1:name=systemd:/\n",
                    ),
                    (MOUNTS, ON_V1),
                    ("sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", quota),
                    ("sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", period),
                    // That of another controller's group.
                    ("sys/fs/cgroup/cpuset/other/cpu.cfs_quota_us", "100000\n"),
                    ("sys/fs/cgroup/cpuset/other/cpu.cfs_period_us", "100000\n"),
                ],
            )
        };
        assert_eq!(v1("150000\n", "100000\n"), Some(1));
        assert_eq!(v1("300000\n", "100000\n"), Some(3));
        assert_eq!(v1("-1\n", "100000\n"), None);
    }

    #[test]
    fn the_least_quota_on_the_way_up_counts() {
        let nested = |outer: &str, middle: &str, inner: &str| {
            quota_of(
                "nested",
                &[
                    (GROUPS, "0::/a/b/c\n"),
                    (MOUNTS, ON_V2),
                    ("sys/fs/cgroup/a/cpu.max", outer),
                    ("sys/fs/cgroup/a/b/cpu.max", middle),
                    ("sys/fs/cgroup/a/b/c/cpu.max", inner),
                    // Not on the way.
                    ("sys/fs/cgroup/a/b/d/cpu.max", "100000 100000\n"),
                ],
            )
        };
        assert_eq!(
            nested("200000 100000", "max 100000", "400000 100000"),
            Some(2)
        );
        assert_eq!(nested("max 100000", "300000 100000", "max 100000"), Some(3));
        assert_eq!(nested("max 100000", "max 100000", "max 100000"), None);
    }

    #[test]
    fn a_system_with_both_versions_has_its_quota_where_the_controller_is() {
        let both = |v1: &str, v2: &str| {
            let mounts = format!(
                "{ON_V1}41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n"
            );
            quota_of(
                "both",
                &[
                    (GROUPS, "4:cpu,cpuacct:/a\n0::/b\n"),
                    (MOUNTS, &mounts),
                    ("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", v1),
                    ("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000"),
                    ("sys/fs/cgroup/unified/b/cpu.max", v2),
                ],
            )
        };
        assert_eq!(both("200000", "max 100000"), Some(2));
        assert_eq!(both("-1", "300000 100000"), Some(3));
        // The group of v2 is there, and its files are not: the usual case.
        let mounts = format!("{ON_V1}41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 none rw\n");
        let files = [
            (GROUPS, "4:cpu,cpuacct:/\n0::/\n"),
            (MOUNTS, &*mounts),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000"),
        ];
        assert_eq!(quota_of("usual", &files), Some(2));
    }

    /// A container sees a part of the hierarchy, and the path of its group from outside.
    #[test]
    fn a_container_finds_its_quota() {
        let mounts = "31 24 0:29 /docker/abc /sys/fs/cgroup/cpu\\040v1 ro - cgroup cgroup rw,cpu\n";
        let seen = |group: &str| {
            quota_of(
                "container",
                &[
                    (GROUPS, group),
                    (MOUNTS, mounts),
                    ("sys/fs/cgroup/cpu v1/cpu.cfs_quota_us", "400000\n"),
                    ("sys/fs/cgroup/cpu v1/cpu.cfs_period_us", "100000\n"),
                    ("sys/fs/cgroup/cpu v1/inner/cpu.cfs_quota_us", "200000\n"),
                    ("sys/fs/cgroup/cpu v1/inner/cpu.cfs_period_us", "100000\n"),
                ],
            )
        };
        assert_eq!(seen("4:cpu:/docker/abc\n"), Some(4));
        assert_eq!(seen("4:cpu:/docker/abc/inner\n"), Some(2));
        // A group outside of what is seen: at least what is around it counts.
        assert_eq!(seen("4:cpu:/docker/xyz\n"), Some(4));
        assert_eq!(seen("4:cpu:/docker/abc/../xyz\n"), Some(4));
    }

    #[test]
    fn files_that_make_no_sense_are_no_quota() {
        assert_eq!(quota_of("nothing", &[("proc/other", "")]), None);
        assert_eq!(quota_of("no mounts", &[(GROUPS, "0::/\n")]), None);
        for groups in [
            "",
            "\n",
            "0::",
            "0:/",
            "nonsense",
            ":::",
            "0::relative",
            "4:cpu:\n",
        ] {
            let max = ("sys/fs/cgroup/cpu.max", "100000 100000");
            let quota = quota_of("groups", &[(GROUPS, groups), (MOUNTS, ON_V2), max]);
            assert_eq!(quota, None, "{groups:?}");
        }
        for mounts in [
            "",
            "-",
            " - ",
            "1 2 3 / /sys - cgroup2",
            "35 24 - cgroup2 x rw",
            "a\\04",
        ] {
            let max = ("sys/fs/cgroup/cpu.max", "100000 100000");
            let quota = quota_of("mounts", &[(GROUPS, "0::/\n"), (MOUNTS, mounts), max]);
            assert_eq!(quota, None, "{mounts:?}");
        }
        for max in [
            "",
            "100000",
            "100000 0",
            "1e5 100000",
            "-5 100000",
            "5 -5",
            "9e99 1",
            "max",
        ] {
            let file = ("sys/fs/cgroup/cpu.max", max);
            let quota = quota_of("max", &[(GROUPS, "0::/\n"), (MOUNTS, ON_V2), file]);
            assert_eq!(quota, None, "{max:?}");
        }
    }

    #[test]
    fn paths_are_unescaped() {
        for (escaped, path) in [
            ("/a", "/a"),
            ("/a\\040b\\134c", "/a b\\c"),
            ("/a\\9", "/a\\9"),
            ("\\040", " "),
        ] {
            assert_eq!(unescaped(escaped), Path::new(path));
        }
    }

    #[test]
    fn masks_are_written_as_the_system_does() {
        let mut mask = Mask(vec![0; 4]);
        for (cpus, text) in [
            (0..0, ""),
            (2..3, "2"),
            (0..1, "0,2"),
            (1..2, "0-2"),
            (63..66, "0-2,63-65"),
            (255..256, "0-2,63-65,255"),
        ] {
            for cpu in cpus {
                mask.0[cpu / WORD_BITS] |= 1 << (cpu % WORD_BITS);
            }
            assert_eq!(mask.to_string(), text);
        }
        assert!(mask.has(64) && !mask.has(66) && !mask.has(256) && !mask.has(usize::MAX));
        assert_eq!(mask.cpus().count(), 7);
        assert_eq!(Mask::of_one(130).cpus().collect::<Vec<_>>(), [130]);
    }
}
