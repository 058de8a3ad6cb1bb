//! Writes files whole or not at all.

use super::error::{ErrorKind, FormatError};
use super::file::compress;
use std::borrow::Cow;
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The longest chain of symbolic links to follow.
const MAX_LINKS: usize = 40;

/// Writes a file whole or not at all, compressed if its name ends in `.gz`; `-` is standard output. Replaces
/// an existing file, and writes to a device or pipe directly.
///
/// # Errors
/// The file cannot be written. The error names it, and no partial file remains.
pub fn save(path: impl AsRef<Path>, bytes: &[u8]) -> Result<(), FormatError> {
    let path = path.as_ref();
    let bytes = match path.extension() {
        Some(ending) if ending == "gz" => Cow::Owned(compress(bytes)),
        _ => Cow::Borrowed(bytes),
    };
    if path == Path::new("-") {
        let mut output = io::stdout().lock();
        let written = output.write_all(&bytes).and_then(|()| output.flush());
        return written.map_err(|error| unwritable(&error).in_file("standard output"));
    }
    let replace = Target::follow(path).and_then(|target| target.replace(&bytes));
    replace.map_err(|error| unwritable(&error).in_file(path))
}

/// Removes unfinished files and refuses further saves, for a program that is exiting.
pub fn stop_saving() {
    let mut unfinished = unfinished();
    for path in unfinished.drain(..) {
        // If that fails, the next program that writes the file removes it.
        let _ = fs::remove_file(path);
    }
    // The list stays locked, so that no further file is begun.
    std::mem::forget(unfinished);
}

fn unwritable(error: &io::Error) -> FormatError {
    FormatError::new(ErrorKind::Io, format!("cannot be written: {error}"))
}

/// The file to write: its path with links resolved.
#[derive(Debug)]
pub struct Target {
    path: PathBuf,
    existing: Option<Metadata>,
}

impl Target {
    /// Follows a path, and checks that a file can be written there.
    ///
    /// # Errors
    /// The path is a folder or read-only, or no file can be created in its folder; the error names the path.
    pub fn find(path: impl AsRef<Path>) -> Result<Self, FormatError> {
        let path = path.as_ref();
        let find = || -> io::Result<Self> {
            let target = Self::follow(path)?;
            if !target.is_special() {
                target.temporary()?;
            }
            Ok(target)
        };
        find().map_err(|error| unwritable(&error).in_file(path))
    }

    /// Returns whether a path leads to the same file. For devices and pipes, it is always false.
    #[must_use]
    pub fn is(&self, path: impl AsRef<Path>) -> bool {
        let Ok(other) = Self::follow(path.as_ref()) else { return false };
        let identity = |target: &Self| target.existing.as_ref().and_then(identity);
        let is_linked = identity(self).is_some() && identity(self) == identity(&other);
        !self.is_special() && (is_linked || self.path == other.path)
    }

    fn follow(path: &Path) -> io::Result<Self> {
        let existing = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            found => Some(found?),
        };
        let path = match &existing {
            None => follow_links(path)?,
            Some(found) if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Some(found) if found.is_file() => fs::canonicalize(path)?,
            Some(_) => path.to_owned(),
        };
        Ok(Self { path, existing })
    }

    fn is_special(&self) -> bool {
        self.existing.as_ref().is_some_and(|existing| !existing.is_file())
    }

    /// Creates the temporary file, if the target may be written.
    fn temporary(&self) -> io::Result<Temporary> {
        if let Some(existing) = &self.existing {
            if existing.permissions().readonly() {
                return Err(io::Error::other("it is read-only"));
            }
            // The rights of the folder would allow a rename onto a file that another user owns.
            OpenOptions::new().write(true).open(&self.path)?;
        }
        Temporary::beside(&self.path)
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        if self.is_special() {
            return OpenOptions::new().write(true).open(&self.path)?.write_all(bytes);
        }
        let mut temporary = self.temporary()?;
        temporary.file.write_all(bytes)?;
        if let Some(existing) = &self.existing {
            temporary.file.set_permissions(existing.permissions())?;
        }
        temporary.file.sync_all()?;
        temporary.rename(&self.path)
    }
}

/// Returns the file at the end of links, which does not exist yet.
fn follow_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(to) = fs::read_link(&path) else {
            let is_folder = path.to_string_lossy().ends_with(std::path::is_separator);
            let name = path.file_name().filter(|_| !is_folder);
            let name = name.ok_or_else(|| io::Error::other("it names no file"))?;
            let folder = path.parent().filter(|folder| *folder != Path::new(""));
            return Ok(fs::canonicalize(folder.unwrap_or(Path::new(".")))?.join(name));
        };
        path.set_file_name(to);
    }
    Err(io::Error::other("too many links lead to each other"))
}

/// The identity that all hard links to a file share.
#[cfg(unix)]
fn identity(metadata: &Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    Some((metadata.dev(), metadata.ino()))
}

/// This identity is not known on this platform.
#[cfg(not(unix))]
fn identity(_: &Metadata) -> Option<(u64, u64)> {
    None
}

/// The temporary files that this process is writing.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A temporary file in the folder of its target, since a rename cannot cross file systems. Each target has
/// one name for its temporary file, and a process locks the file while it lives. So the next process that
/// writes the target recognizes and removes the file of a killed process.
struct Temporary {
    file: File,
    path: PathBuf,
    is_renamed: bool,
}

impl Temporary {
    /// Creates the file, once no other process writes the same target.
    fn beside(target: &Path) -> io::Result<Self> {
        let path = temporary_path(target);
        loop {
            let mut unfinished = unfinished();
            let created = OpenOptions::new().write(true).create_new(true).open(&path);
            let is_new = created.is_ok();
            let file = match created {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    match existing(&path)? {
                        Some(file) => file,
                        None => continue,
                    }
                }
                created => created?,
            };
            if let Err(TryLockError::WouldBlock) = file.try_lock() {
                drop(unfinished);
                file.lock()?;
                continue;
            }
            match fs::symlink_metadata(&path) {
                Ok(found) if identity(&found) == identity(&file.metadata()?) => {}
                // The process that had the file has renamed or removed it.
                _ => continue,
            }
            if is_new {
                unfinished.push(path.clone());
                return Ok(Self { file, path, is_renamed: false });
            }
            fs::remove_file(&path)?;
        }
    }

    fn rename(mut self, target: &Path) -> io::Result<()> {
        let mut unfinished = unfinished();
        fs::rename(&self.path, target)?;
        self.is_renamed = true;
        unfinished.retain(|path| *path != self.path);
        drop(unfinished);
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_renamed {
            let mut unfinished = unfinished();
            unfinished.retain(|path| *path != self.path);
            // If that fails, the next program that writes the file removes it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Opens the file of another process, unless it is gone.
fn existing(path: &Path) -> io::Result<Option<File>> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => Err(io::ErrorKind::AlreadyExists.into()),
        _ => match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        },
    }
}

/// Returns the path of the temporary file. Cuts long names, since a name has at most 255 bytes; 60 characters
/// and the rest fit.
fn temporary_path(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let start: String = name.chars().take(60).collect();
    target.with_file_name(format!(".{start}.spillway.tmp"))
}

#[cfg(test)]
mod tests {
    use super::super::load;
    use super::*;
    use std::thread;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("spillway-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn saving_replaces_files_and_leaves_nothing_else() {
        let folder = folder("save");
        let file = folder.join("plan.json.gz");
        save(&file, b"first").unwrap();
        save(&file, b"second").unwrap();
        assert_eq!(load(&file).unwrap(), b"second");
        assert_eq!(fs::read(&file).unwrap(), compress(b"second"));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);

        let error = save(folder.join("absent/plan.json"), b"x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("absent"), "{error}");
        assert_eq!(save(&folder, b"x").unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_link_keeps_its_target_and_a_device_stays_a_device() {
        let folder = folder("link");
        fs::write(folder.join("real"), "old").unwrap();
        std::os::unix::fs::symlink(folder.join("real"), folder.join("link")).unwrap();
        save(folder.join("link"), b"new").unwrap();
        assert_eq!(fs::read(folder.join("real")).unwrap(), b"new");
        assert!(fs::symlink_metadata(folder.join("link")).unwrap().is_symlink());
        fs::remove_dir_all(&folder).unwrap();
        // As root, a rename would succeed here.
        if Path::new("/dev/full").exists() {
            assert_eq!(save("/dev/full", b"x").unwrap_err().kind(), ErrorKind::Io);
            assert!(!fs::metadata("/dev/full").unwrap().is_file());
        }
    }

    #[test]
    fn what_a_killed_program_left_is_removed_by_the_next() {
        let folder = folder("killed");
        let file = folder.join("plan.json");
        let left = temporary_path(&file);
        fs::write(&left, "much more than what will be written").unwrap();
        assert!(left.file_name().unwrap().to_string_lossy().contains("plan.json"));
        Target::find(&file).unwrap();
        assert!(names(&folder).is_empty());
        fs::write(&left, "much more than what will be written").unwrap();
        save(&file, b"new").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert_eq!(names(&folder), ["plan.json"]);
        // A file of that name with another owner stays.
        fs::create_dir(&left).unwrap();
        assert_eq!(save(&file, b"newer").unwrap_err().kind(), ErrorKind::Io);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_target_that_is_being_written_is_waited_for() {
        let folder = folder("waits");
        let file = folder.join("plan.json");
        let mut first = Temporary::beside(&file).unwrap();
        let second = {
            let file = file.clone();
            thread::spawn(move || save(file, b"second").unwrap())
        };
        // For any duration, the second save cannot end earlier.
        thread::sleep(std::time::Duration::from_millis(50));
        assert!(!second.is_finished() && !file.exists());
        first.file.write_all(b"first").unwrap();
        first.rename(&file).unwrap();
        second.join().unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"second");
        assert_eq!(names(&folder), ["plan.json"]);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn many_writers_leave_one_whole_file() {
        let folder = folder("many");
        let file = folder.join("plan.json");
        thread::scope(|scope| {
            for writer in 0..8u8 {
                let file = &file;
                scope.spawn(move || (0..20).for_each(|_| save(file, &[writer; 5000]).unwrap()));
            }
        });
        let bytes = fs::read(&file).unwrap();
        assert!(bytes.len() == 5000 && bytes.iter().all(|byte| *byte == bytes[0]));
        assert_eq!(names(&folder), ["plan.json"]);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_file_is_known_by_every_name() {
        let folder = folder("names");
        let file = folder.join("a.json");
        fs::write(&file, "a").unwrap();
        fs::hard_link(&file, folder.join("hard")).unwrap();
        fs::create_dir(folder.join("sub")).unwrap();
        let target = Target::find(&file).unwrap();
        for name in ["a.json", "hard", "sub/../a.json", "./a.json"] {
            assert!(target.is(folder.join(name)), "{name}");
        }
        fs::write(folder.join("b.json"), "a").unwrap();
        assert!(!target.is(folder.join("b.json")) && !target.is(folder.join("c.json")));
        let new = Target::find(folder.join("sub/new")).unwrap();
        assert!(new.is(folder.join("sub/../sub/./new")) && !new.is(folder.join("new")));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_cannot_be_written_is_known_before() {
        let folder = folder("refused");
        let file = folder.join("plan.json");
        fs::write(&file, "kept").unwrap();
        let mut permissions = fs::metadata(&file).unwrap().permissions();
        permissions.set_readonly(true);
        fs::set_permissions(&file, permissions).unwrap();
        let long = "x".repeat(256);
        for name in ["plan.json", ".", "absent/plan.json", "plan.json/x", "new/", long.as_str()] {
            let path = folder.join(name);
            let error = Target::find(&path).unwrap_err();
            assert!(error.to_string().contains("cannot be written"), "{error}");
            assert_eq!(save(&path, b"x").unwrap_err(), error);
        }
        assert_eq!(names(&folder), ["plan.json"]);
        assert_eq!(fs::read(&file).unwrap(), b"kept");
        for name in ["x".repeat(255), "数".repeat(85)] {
            save(folder.join(&name), b"x").unwrap();
            assert!(names(&folder).contains(&name));
        }
        assert_eq!(names(&folder).len(), 3);
        fs::remove_dir_all(&folder).unwrap();
    }
}
