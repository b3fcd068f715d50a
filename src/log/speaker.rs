//! Who says it, and when: the manager on whose behalf this thread works, the time, the process.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::thread::Thread;

/// Names of the living managers, by number.
static NAMES: Mutex<(u32, BTreeMap<u32, Arc<str>>)> = Mutex::new((0, BTreeMap::new()));

/// A manager, as its messages call it.
#[derive(Debug)]
pub struct Speaker(u32);

impl Speaker {
    /// Makes the name known.
    pub fn new(name: &str) -> Speaker {
        let mut names = NAMES.lock();
        loop {
            names.0 = names.0.wrapping_add(1);
            let number = names.0;
            if number != 0 && !names.1.contains_key(&number) {
                names.1.insert(number, name.into());
                return Speaker(number);
            }
        }
    }

    /// It has another name.
    pub fn rename(&self, name: &str) {
        NAMES.lock().1.insert(self.0, name.into());
    }

    /// Until the result is dropped, what this thread logs is this manager's.
    #[inline]
    pub fn speak(&self) -> Speaking {
        self.speak_on(Thread::this())
    }

    /// The same, on this thread.
    #[inline]
    pub(crate) fn speak_on(&self, thread: Thread) -> Speaking {
        Speaking { before: thread.log.speaker.replace(self.0), thread }
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        NAMES.lock().1.remove(&self.0);
    }
}

/// See [`Speaker::speak`].
#[derive(Debug)]
pub struct Speaking {
    before: u32,
    thread: Thread,
}

impl Drop for Speaking {
    #[inline]
    fn drop(&mut self) {
        self.thread.log.speaker.set(self.before);
    }
}

/// "name: " of the manager that speaks, or nothing.
pub(super) fn prefix() -> String {
    match Thread::this().log.speaker.get() {
        0 => String::new(),
        number => NAMES.lock().1.get(&number).map_or_else(String::new, |name| format!("{name}: ")),
    }
}

/// Time and process, as they begin a line.
pub(super) struct Stamp {
    since_epoch: std::time::Duration,
}

impl Stamp {
    pub(super) fn now() -> Stamp {
        Stamp { since_epoch: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() }
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.since_epoch.as_secs();
        let (year, month, day) = date((seconds / 86_400) as i64);
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        let ms = self.since_epoch.subsec_millis();
        let process = std::process::id();
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z {process}"
        )
    }
}

/// Year, month and day of a day since 1970-01-01 (Howard Hinnant's civil_from_days).
fn date(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    (yoe + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn r26_a_line_begins_with_time_and_process() {
        let at = |seconds: u64| Stamp { since_epoch: Duration::from_millis(seconds * 1000 + 7) };
        let process = std::process::id();
        assert_eq!(at(0).to_string(), format!("1970-01-01T00:00:00.007Z {process}"));
        assert_eq!(at(951_782_400).to_string(), format!("2000-02-29T00:00:00.007Z {process}"));
        assert_eq!(at(1_795_302_301).to_string(), format!("2026-11-21T23:05:01.007Z {process}"));
        assert_eq!(at(4_102_444_799).to_string(), format!("2099-12-31T23:59:59.007Z {process}"));
    }

    #[test]
    fn r26_the_innermost_manager_speaks() {
        let (a, b) = (Speaker::new("a"), Speaker::new("b"));
        assert_eq!(prefix(), "");
        {
            let _a = a.speak();
            assert_eq!(prefix(), "a: ");
            {
                let _b = b.speak();
                b.rename("bee");
                assert_eq!(prefix(), "bee: ");
            }
            assert_eq!(prefix(), "a: ");
            std::thread::scope(|s| s.spawn(|| assert_eq!(prefix(), "")).join()).unwrap();
            drop(a);
            assert_eq!(prefix(), "", "a manager that is gone");
        }
        assert_eq!(prefix(), "");
    }
}
