//! Control groups of processes: memory limits, freezing, and container names.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::text;

/// Usual mount point of control groups.
const MOUNT: &str = "/sys/fs/cgroup";

/// Memory of a control group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes in use.
    pub current: u64,
    /// Limit in bytes; `None` if there is none.
    pub limit: Option<u64>,
}

/// Returns the control groups of a process: controllers (empty for version 2), and the path.
fn groups(pid: i32) -> Vec<(String, String)> {
    Membership::of(pid).groups()
}

fn parse(text: &str) -> Vec<(String, String)> {
    text.lines()
        .filter_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            Some((parts.next()?.to_owned(), parts.next()?.to_owned()))
        })
        .collect()
}

/// Control groups of a process: the text of its file `cgroup`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Membership(Vec<u8>);

impl Membership {
    /// Reads the control groups of a process.
    pub fn of(pid: i32) -> Self {
        let mut text = proc::file(pid, "cgroup").unwrap_or_default();
        text.shrink_to_fit();
        Self(text)
    }

    fn groups(&self) -> Vec<(String, String)> {
        parse(&String::from_utf8_lossy(&self.0))
    }

    /// Returns the container that the groups belong to, judged by their names.
    pub fn container(&self) -> Option<String> {
        let groups = self.groups();
        groups.iter().find_map(|(_, path)| container_of(path))
    }

    /// Returns the memory of the nearest group with a limit, or else of the innermost group.
    pub fn memory(&self) -> Option<Memory> {
        let (directories, names) = memory_groups(&self.groups())?;
        let mut own_memory = None;
        for directory in directories {
            let memory = memory_of(&directory, names);
            if memory.is_some_and(|memory| memory.limit.is_some()) {
                return memory;
            }
            own_memory = own_memory.or(memory);
        }
        own_memory
    }
}

/// Mounted hierarchy of control groups.
#[derive(Clone, Debug)]
struct Mount {
    /// Controllers of the hierarchy; empty for version 2.
    controllers: Vec<String>,
    /// Group whose directory is mounted.
    root: PathBuf,
    mount_point: PathBuf,
}

impl Mount {
    /// Returns all mounts of version 1 and 2. Many machines have both.
    fn all() -> Vec<Self> {
        let text = proc::own_mounts().unwrap_or_default();
        let lines = text.split(|byte| *byte == b'\n');
        lines.filter_map(Self::parse).collect()
    }

    /// Parses a line of `mountinfo`. Returns `None` for other file systems.
    fn parse(line: &[u8]) -> Option<Self> {
        let paths = line.split(|byte| *byte == b' ').skip(3).take(2);
        let mut paths = paths.map(unescaped);
        let (_, file_system) = std::str::from_utf8(line).ok()?.split_once(" - ")?;
        let mut file_system = file_system.split(' ');
        let kind = file_system.next()?;
        let options = file_system.nth(1)?;
        let controllers = match kind {
            "cgroup2" => Vec::new(),
            "cgroup" => options.split(',').map(str::to_owned).collect(),
            _ => return None,
        };
        Some(Self {
            controllers,
            root: paths.next()?,
            mount_point: paths.next()?,
        })
    }

    /// Returns the directory of a process's group below this mount, or `None` if the group belongs
    /// to another hierarchy or is outside of the mounted part.
    fn directory_of(&self, controllers: &str, path: &Path) -> Option<PathBuf> {
        let is_same_hierarchy = match controllers {
            "" => self.controllers.is_empty(),
            _ => controllers
                .split(',')
                .all(|controller| self.controllers.iter().any(|mounted| mounted == controller)),
        };
        if !is_same_hierarchy {
            return None;
        }
        let inside = path.strip_prefix(&self.root).ok()?;
        Some(self.mount_point.join(inside))
    }
}

/// Decodes a path of `mountinfo`, in which spaces, tabs, line feeds and backslashes are octal
/// escapes.
fn unescaped(path: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| first == b'\\');
        let number = digits.and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        bytes.push(number.unwrap_or(first));
        rest = match number {
            Some(_) => &after[3..],
            None => after,
        };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Account of a control group's memory.
#[derive(Clone, Debug)]
pub struct Account {
    /// Hierarchy of the group.
    mount: Mount,
    /// Directory of the group.
    pub directory: PathBuf,
    /// Version of the control groups, 1 or 2.
    pub version: u8,
    /// True for the root of all groups, which is not charged for the kernel's memory.
    pub is_root: bool,
}

impl Account {
    /// Returns the bytes in use and the limit.
    pub fn memory(&self) -> Option<Memory> {
        memory_of(&self.directory, usage_files(self.version))
    }

    /// Returns the ancestor of the group that is nearest to its own limit, with its memory; `None`
    /// if no ancestor has a limit.
    pub fn narrowest_around(&self) -> Option<(PathBuf, Memory)> {
        let around = self.directory.ancestors().skip(1);
        let around = around.take_while(|group| group.starts_with(&self.mount.mount_point));
        let limited = around.filter_map(|group| {
            let memory = memory_of(group, usage_files(self.version))?;
            memory.limit?;
            Some((group.to_owned(), memory))
        });
        limited.min_by_key(|(_, memory)| {
            let limit = memory.limit.unwrap_or(u64::MAX);
            limit.saturating_sub(memory.current)
        })
    }

    /// Returns true if a process is in the group or in a descendant of it, so that its memory is
    /// charged to the group.
    pub fn contains(&self, pid: i32) -> bool {
        groups(pid).iter().any(|(controllers, path)| {
            let directory = self.mount.directory_of(controllers, Path::new(path));
            directory.is_some_and(|directory| directory.starts_with(&self.directory))
        })
    }

    /// Returns a number that a file of the group contains.
    pub fn number(&self, file: &str) -> Option<u64> {
        number_in(&self.directory.join(file))
    }

    /// Returns the counters of `memory.stat`, by name, in bytes. Of version 1, returns those that
    /// include descendants, without their prefix `total_`.
    pub fn counters(&self) -> HashMap<String, u64> {
        let text = fs::read_to_string(self.directory.join("memory.stat")).unwrap_or_default();
        text.lines()
            .filter_map(|line| {
                let (name, number) = line.split_once(' ')?;
                let name = match self.version {
                    1 => name.strip_prefix("total_")?,
                    _ => name,
                };
                Some((name.to_owned(), number.trim().parse().ok()?))
            })
            .collect()
    }
}

/// Returns the names of the files with the usage and the limit.
fn usage_files(version: u8) -> [&'static str; 2] {
    match version {
        1 => ["memory.usage_in_bytes", "memory.limit_in_bytes"],
        _ => ["memory.current", "memory.max"],
    }
}

/// Control group that was requested.
pub struct Group {
    path: PathBuf,
    mounts: Vec<Mount>,
}

impl Group {
    /// Selects the group at a path, with or without the mount point.
    pub fn at(path: &Path) -> Self {
        let mounts = Mount::all();
        let path = Path::new("/").join(path);
        Self { path, mounts }
    }

    /// Returns true if the group exists, with or without processes.
    pub fn exists(&self) -> bool {
        let inside = self.path.strip_prefix("/").unwrap_or(&self.path);
        let in_mount = |mount: &Mount| {
            if self.path.starts_with(&mount.mount_point) {
                self.path.is_dir()
            } else {
                mount.mount_point.join(inside).is_dir()
            }
        };
        self.mounts.iter().any(in_mount) || Path::new(MOUNT).join(inside).is_dir()
    }

    /// Returns the account of the group's memory. Returns `None` if there is no such group, or if
    /// memory is not accounted for it.
    pub fn account(&self) -> Option<Account> {
        let inside = self.path.strip_prefix("/").unwrap_or(&self.path);
        self.mounts.iter().find_map(|mount| {
            let version = match &mount.controllers[..] {
                [] => 2,
                controllers if controllers.iter().any(|name| name == "memory") => 1,
                _ => return None,
            };
            let inside = match self.path.strip_prefix(&mount.mount_point) {
                Ok(inside) => inside,
                Err(_) if version == 1 => inside.strip_prefix("memory").unwrap_or(inside),
                Err(_) => inside,
            };
            let directory = mount.mount_point.join(inside);
            // Only the root of version 1 has this file. By its path, any group may look like the
            // root from inside a container.
            let is_root = version == 1 && directory.join("release_agent").exists();
            let account = Account {
                mount: mount.clone(),
                directory,
                version,
                is_root,
            };
            account.memory().is_some().then_some(account)
        })
    }

    /// Returns true if a process is in the group or in a descendant of it.
    pub fn contains(&self, pid: i32) -> bool {
        let wanted = without_mount_point(&self.path);
        groups(pid).iter().any(|(controllers, path)| {
            let path = Path::new(path);
            let is_inside = |mount: &Mount| {
                let directory = mount.directory_of(controllers, path);
                directory.is_some_and(|directory| directory.starts_with(&self.path))
            };
            // Version 1 has a tree for each controller, in a directory of that name below the mount
            // point.
            let in_tree = |controller: &str| {
                Path::new("/")
                    .join(controller)
                    .join(path.strip_prefix("/").unwrap_or(path))
            };
            path.starts_with(&wanted)
                || self.mounts.iter().any(is_inside)
                || controllers
                    .split(',')
                    .any(|c| in_tree(c).starts_with(&wanted))
        })
    }
}

/// Returns true if a process is in the control group `path` or in a descendant of it. The path may
/// be given with or without the mount point.
pub fn contains(path: &Path, pid: i32) -> bool {
    Group::at(path).contains(pid)
}

/// Returns true if a process is in a control group of this name, or in a descendant of one.
pub fn is_called(name: &str, pid: i32) -> bool {
    let mut groups = groups(pid).into_iter();
    groups.any(|(_, path)| path.split('/').any(|part| part == name))
}

fn without_mount_point(path: &Path) -> PathBuf {
    let inside = path.strip_prefix(MOUNT).unwrap_or(path);
    Path::new("/").join(inside.strip_prefix("/").unwrap_or(inside))
}

/// Returns the bytes that a process's control groups may still use; `None` if they have no limit.
/// Beyond the limit, the kernel kills one of their processes.
pub fn room(pid: i32) -> Option<u64> {
    let (directories, names) = memory_groups(&groups(pid))?;
    let rooms = directories
        .iter()
        .filter_map(|directory| room_of(directory, names));
    rooms.min()
}

/// Returns the bytes that a control group may still use. File cache counts as free, because the
/// kernel reclaims it.
fn room_of(directory: &Path, names: [&str; 2]) -> Option<u64> {
    let memory = memory_of(directory, names)?;
    let stat = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
    let number = |name: &str| {
        let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
        let line = lines.find(|(key, _)| *key == name);
        line.and_then(|(_, number)| number.parse::<u64>().ok())
    };
    // In version 1, totals that include descendants have a prefix.
    let files = ["inactive_file", "active_file"].map(|name| {
        number(&format!("total_{name}"))
            .or_else(|| number(name))
            .unwrap_or(0)
    });
    let in_use = memory
        .current
        .saturating_sub(files[0])
        .saturating_sub(files[1]);
    Some(memory.limit?.saturating_sub(in_use))
}

/// Returns a control group around a process that has reached its limit on threads, and the limit.
pub fn full_of_processes(pid: i32) -> Option<(String, u64)> {
    let (directories, _) = controlled_by("pids", &groups(pid))?;
    directories.iter().find_map(|directory| {
        let number = |name: &str| number_in(&directory.join(name));
        let current = number("pids.current")?;
        let limit = number("pids.max")?;
        let path = text::escape(directory.as_os_str().as_encoded_bytes());
        (current >= limit).then_some((path, limit))
    })
}

/// Returns the path of the frozen control group around a process, if there is one: its own or an
/// ancestor, of either version.
pub fn frozen(pid: i32) -> Option<String> {
    let groups = groups(pid);
    Mount::all().iter().find_map(|mount| {
        let directory_in_mount = |(controllers, path): &(String, String)| {
            mount.directory_of(controllers, Path::new(path))
        };
        let directory = groups.iter().find_map(directory_in_mount)?;
        let mut groups = directory
            .ancestors()
            .take_while(|group| group.starts_with(&mount.mount_point));
        let frozen = groups.find(|group| is_frozen(group))?;
        Some(text::path(frozen))
    })
}

/// Returns true if a group's processes are frozen. Version 2 shows only whether the group itself
/// was frozen; version 1 includes freezing by an ancestor.
fn is_frozen(group: &Path) -> bool {
    let read = |name: &str| fs::read_to_string(group.join(name)).unwrap_or_default();
    read("freezer.state").trim() == "FROZEN"
        || read("cgroup.events").lines().any(|line| line == "frozen 1")
}

/// Returns the control groups that account a process's memory, from its own up, and the names of
/// the files with the usage and the limit.
fn memory_groups(groups: &[(String, String)]) -> Option<(Vec<PathBuf>, [&'static str; 2])> {
    let (directories, version) = controlled_by("memory", groups)?;
    Some((directories, usage_files(version)))
}

/// Returns the directories of a process's control groups in a controller's hierarchy, from its own
/// up, and the version.
fn controlled_by(controller: &str, groups: &[(String, String)]) -> Option<(Vec<PathBuf>, u8)> {
    let (root, path, version) = groups.iter().find_map(|(controllers, path)| {
        if controllers.is_empty() && Path::new(MOUNT).join("cgroup.controllers").exists() {
            return Some((PathBuf::from(MOUNT), path, 2));
        }
        let has_controller = controllers.split(',').any(|c| c == controller);
        has_controller.then(|| (Path::new(MOUNT).join(controller), path, 1))
    })?;
    let group = root.join(path.trim_start_matches('/'));
    let directories = group
        .ancestors()
        .take_while(|directory| directory.starts_with(&root));
    Some((directories.map(Path::to_owned).collect(), version))
}

fn number_in(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn memory_of(directory: &Path, [current, limit]: [&str; 2]) -> Option<Memory> {
    let number = |name: &str| number_in(&directory.join(name));
    // "max", or a number near 2^63 in version 1, is not a limit.
    let limit = number(limit).filter(|limit| *limit < 1 << 60);
    Some(Memory {
        current: number(current)?,
        limit,
    })
}

fn container_of(path: &str) -> Option<String> {
    path.rsplit('/').find_map(|part| {
        let part = part
            .strip_suffix(".scope")
            .or(part.strip_suffix(".service"))
            .unwrap_or(part);
        let hex = |text: &str| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let last = part.rsplit(['-', ':']).next().unwrap_or(part);
        if hex(last) {
            let kind = part.strip_suffix(last)?.trim_end_matches(['-', ':']);
            let kind = kind.rsplit(['-', ':']).next()?;
            let id = &last[..12];
            return Some(if kind.is_empty() {
                id.to_owned()
            } else {
                format!("{kind}:{id}")
            });
        }
        let named = ["machine-", "lxc.payload."]
            .iter()
            .find_map(|p| part.strip_prefix(p));
        named.map(str::to_owned)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_names_are_found_in_group_paths() {
        let id = "0123456789abcdef".repeat(4);
        for (path, name) in [
            (format!("/docker/{id}"), Some("0123456789ab")),
            (
                format!("/system.slice/docker-{id}.scope"),
                Some("docker:0123456789ab"),
            ),
            (
                format!("/kubepods/burstable/pod1/cri-containerd-{id}.scope"),
                Some("containerd:0123456789ab"),
            ),
            ("/machine.slice/machine-web.scope".to_owned(), Some("web")),
            ("/lxc.payload.box/init".to_owned(), Some("box")),
            ("/user.slice/user-0.slice".to_owned(), None),
        ] {
            assert_eq!(container_of(&path).as_deref(), name, "{path}");
        }
    }

    #[test]
    fn groups_parse_in_both_versions() {
        let text = "4:memory:/a/b\n2:cpu,cpuacct:/c\n0::/d:e\n";
        let groups = parse(text);
        assert_eq!(groups[0], ("memory".to_owned(), "/a/b".to_owned()));
        assert_eq!(groups[2], (String::new(), "/d:e".to_owned()));
        assert_eq!(
            without_mount_point(Path::new("/sys/fs/cgroup/memory/x")),
            Path::new("/memory/x")
        );
        assert_eq!(without_mount_point(Path::new("app")), Path::new("/app"));
    }

    #[test]
    fn group_directories_are_below_the_mount_point() {
        let mounts = [
            "30 25 0:26 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate",
            "31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct",
            "32 25 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd",
            "33 25 0:29 /box /cgroup rw - cgroup2 cgroup2 rw",
        ]
        .map(|line| Mount::parse(line.as_bytes()).expect("a mount"));
        for (mount, controllers, path, shown) in [
            (0, "", "/app/web", Some("/sys/fs/cgroup/unified/app/web")),
            (0, "cpu", "/app", None),
            (1, "cpu,cpuacct", "/a", Some("/sys/fs/cgroup/cpu,cpuacct/a")),
            (1, "", "/a", None),
            (2, "name=systemd", "/u", Some("/sys/fs/cgroup/systemd/u")),
            (3, "", "/box/a", Some("/cgroup/a")),
            (3, "", "/other", None),
        ] {
            let found = mounts[mount].directory_of(controllers, Path::new(path));
            assert_eq!(found.as_deref(), shown.map(Path::new), "{path}");
        }
        assert!(Mount::parse(b"22 1 0:2 / /proc rw - proc proc rw").is_none());
    }

    #[test]
    fn spaces_in_mount_points_are_decoded() {
        let line = b"30 25 0:26 /a\\040b /mnt/my\\040groups\\134x\\9 rw - cgroup2 cgroup2 rw";
        let mount = Mount::parse(line).expect("a mount");
        assert_eq!(mount.root, Path::new("/a b"));
        assert_eq!(mount.mount_point, Path::new("/mnt/my groups\\x\\9"));
    }

    #[test]
    fn only_groups_of_the_memory_hierarchy_are_charged() {
        let mount = |line: &[u8]| Mount::parse(line).expect("a mount");
        let memory = mount(b"31 25 0:27 / /groups/memory rw - cgroup cgroup rw,memory");
        for (controllers, path, expected) in [
            ("memory", "/app", Some("/groups/memory/app")),
            ("cpu,cpuacct", "/app", None),
            ("", "/app", None),
        ] {
            let found = memory.directory_of(controllers, Path::new(path));
            assert_eq!(found.as_deref(), expected.map(Path::new), "{controllers}");
        }
    }

    #[test]
    fn the_narrowest_limit_around_a_group_is_found() {
        let directory = tempfile::tempdir().expect("a directory");
        let top = directory.path().to_owned();
        let inner = top.join("outer/middle/inner");
        fs::create_dir_all(&inner).expect("directories");
        for (group, current, limit) in [
            ("outer", 900, "1000"),
            ("outer/middle", 100, "150"),
            ("outer/middle/inner", 10, "11"),
        ] {
            let write = |name, text: &str| fs::write(top.join(group).join(name), text);
            write("memory.current", &current.to_string()).expect("written");
            write("memory.max", limit).expect("written");
        }
        let mount = Mount {
            controllers: Vec::new(),
            root: PathBuf::from("/"),
            mount_point: top.clone(),
        };
        let account = |directory: PathBuf| Account {
            mount: mount.clone(),
            directory,
            version: 2,
            is_root: false,
        };
        let (group, memory) = account(inner).narrowest_around().expect("a limit");
        assert_eq!(group, top.join("outer/middle"));
        assert_eq!((memory.current, memory.limit), (100, Some(150)));
        assert!(account(top.join("outer")).narrowest_around().is_none());
    }

    #[test]
    fn page_cache_counts_as_free() {
        let directory = tempfile::tempdir().expect("a directory");
        let group = directory.path();
        let write = |name: &str, text: &str| fs::write(group.join(name), text).expect("written");
        let names = ["memory.current", "memory.max"];
        write("memory.current", "1000\n");
        write("memory.max", "max\n");
        assert_eq!(room_of(group, names), None);
        write("memory.max", "1200\n");
        assert_eq!(room_of(group, names), Some(200));
        write(
            "memory.stat",
            "anon 5\ninactive_file 300\nactive_file 100\n",
        );
        assert_eq!(room_of(group, names), Some(600));
        write(
            "memory.stat",
            "inactive_file 300\ntotal_inactive_file 20\ntotal_active_file 0\n",
        );
        assert_eq!(room_of(group, names), Some(220));
        write("memory.max", "100\n");
        assert_eq!(room_of(group, names), Some(0));
    }

    #[test]
    fn frozen_groups_are_recognised_in_both_versions() {
        for (file, text, expected) in [
            ("freezer.state", "FROZEN\n", true),
            ("freezer.state", "THAWED\n", false),
            ("cgroup.events", "populated 1\nfrozen 1\n", true),
            ("cgroup.events", "populated 1\nfrozen 0\n", false),
        ] {
            let directory = tempfile::tempdir().expect("a directory");
            fs::write(directory.path().join(file), text).expect("written");
            assert_eq!(is_frozen(directory.path()), expected, "{text}");
        }
        assert_eq!(frozen(std::process::id() as i32), None);
    }

    #[test]
    fn every_process_is_in_the_root_group() {
        assert!(contains(Path::new("/"), std::process::id() as i32));
        assert!(!contains(
            Path::new("/no/such/group"),
            std::process::id() as i32
        ));
    }
}
