//! Where in the text a frame is. A child says the addresses, and its parent, the same program, asks `addr2line` for them, once for each:
//! a trace in names takes a process two tenths of a second.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A function, and its file and line; of what is inlined, the inner one first.
pub type Frame = (String, String);

unsafe extern "C" {
    /// Where this program begins, by the linker.
    #[link_name = "__ehdr_start"]
    static BEGIN: u8;
}

/// An address as the program's file has it.
pub fn in_file(frame: usize) -> usize {
    frame.wrapping_sub(&raw const BEGIN as usize)
}

/// What asks, and what it was told.
#[derive(Default)]
pub struct Names {
    asked: Option<Asked>,
    known: HashMap<usize, Vec<Frame>>,
}

struct Asked {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Names {
    /// The frames of a call that returns to this address of the file; none where it is not the program's.
    pub fn of(&mut self, address: usize) -> &[Frame] {
        let asked = self.asked.get_or_insert_with(Asked::new);
        self.known.entry(address).or_insert_with(|| asked.ask(address))
    }
}

impl Asked {
    fn new() -> Asked {
        let mut command = Command::new("addr2line");
        command.args(["-a", "-i", "-f", "-C", "-e"]).arg(std::env::current_exe().unwrap());
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = pipes.spawn().expect("addr2line, of binutils");
        let (to, from) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        Asked { process, to, from: BufReader::new(from) }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.from.read_line(&mut line).unwrap() > 0, "addr2line has ended");
        line.trim_end().to_owned()
    }

    /// What comes before the answer to 0, of which nothing is known.
    fn ask(&mut self, address: usize) -> Vec<Frame> {
        // The call is before where it returns to.
        writeln!(self.to, "{:#x}\n0", address.wrapping_sub(1)).unwrap();
        self.to.flush().unwrap();
        self.line();
        let mut frames = Vec::new();
        loop {
            let function = self.line();
            if function.starts_with("0x") {
                assert_eq!((self.line().as_str(), self.line().as_str()), ("??", "??:0"));
                return frames;
            }
            frames.push((function, self.line()));
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
#[inline(always)]
fn inner() -> (usize, u32) {
    let mut frames = [std::ptr::null_mut(); 2];
    // SAFETY: room for so many.
    let (n, line) = (unsafe { libc::backtrace(frames.as_mut_ptr(), 2) }, line!());
    assert!(n >= 1);
    (in_file(frames[0].addr()), line)
}

/// A line that is known, and where it is inlined.
#[test]
fn frames_have_names() {
    let ((address, line), outer) = (inner(), line!());
    let mut names = Names::default();
    let frames = names.of(address).to_vec();
    let lines = [line, outer].map(|line| format!("names.rs:{line}"));
    assert_eq!(frames.len(), 2, "{frames:?}");
    for (frame, line) in frames.iter().zip(lines) {
        assert!(frame.1.ends_with(&line), "{frames:?} has no {line}");
    }
    assert!(frames[1].0.ends_with("frames_have_names"), "{frames:?}");
    assert_eq!(names.of(address), frames);
    assert!(names.of(usize::MAX).iter().all(|frame| frame.0 == "??"));
}
