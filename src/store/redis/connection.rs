//! A connection to a Redis server: what is asked, the answer as the crate `redis` reads it, and what an error means.

use std::io::{self, Read};

use redis::{Cmd, ErrorKind, Parser, RedisError, ServerErrorKind, Value};

use crate::limits::{STORE_REPLY, STORE_VALUE};
use crate::shown;
use crate::status::{Code, Status};
use crate::store::socket::ClientSocket;
use crate::store::{Effect, Failed, Until};

/// Longest answer: the longest value, or several in as many bytes as are asked for, and what is around them.
const MAX_ANSWER: usize = STORE_VALUE + STORE_REPLY + (64 << 10);

/// A connection to a server.
pub struct Connection {
    link: ClientSocket,
    parser: Parser,
}

/// An answer, as it comes.
struct Answer<'a> {
    link: &'a ClientSocket,
    until: Until<'a>,
    /// Bytes that it may still have.
    left: usize,
    /// Why there is no more of it.
    failed: Option<Failed>,
}

/// What the server's refusal means.
pub fn judge(error: &RedisError) -> Failed {
    use ServerErrorKind as S;
    let text = error.to_string();
    let text = shown::text(&text);
    // Which of our scripts it was, and where in it, says nothing to who used a store.
    let shown = text.split(" script: ").next().unwrap_or(&text);
    let status = |code| Status::new(code, shown.to_owned());
    match error.kind() {
        ErrorKind::AuthenticationFailed => Failed::Finally(status(Code::Unauthenticated)),
        // Nothing was done while another's script ran.
        _ if error.code() == Some("BUSY") => Failed::Again(status(Code::Unavailable)),
        ErrorKind::Server(S::BusyLoading | S::TryAgain | S::MasterDown) => {
            Failed::Again(status(Code::Unavailable))
        }
        // It refuses the connection, not what is asked: others end theirs.
        _ if text.contains("max number of clients") => {
            Failed::Again(status(Code::ResourceExhausted))
        }
        ErrorKind::Server(S::NoPerm) => Failed::Finally(status(Code::PermissionDenied)),
        ErrorKind::Server(S::ReadOnly | S::Moved | S::CrossSlot | S::ClusterDown) => {
            Failed::Finally(status(Code::FailedPrecondition))
        }
        _ => match error.code() {
            Some("NOAUTH" | "WRONGPASS") => Failed::Finally(status(Code::Unauthenticated)),
            // So it says of a question that is too long for who has not proved the password.
            _ if text.contains("Protocol error: unauthenticated") => {
                Failed::Finally(status(Code::Unauthenticated))
            }
            // As the server says it of a command in a script, with the script's hash and the line.
            _ if text.contains("NOPERM")
                || text.contains("ACL failure in script")
                || text.contains("The user executing the script can't") =>
            {
                let text = "the server refuses this user a command of the script, and may have done those before it";
                Failed::Finally(Status::new(Code::PermissionDenied, text))
            }
            Some("OOM" | "MISCONF") => Failed::Finally(status(Code::ResourceExhausted)),
            _ if text.contains("OOM command not allowed") => {
                Failed::Finally(status(Code::ResourceExhausted))
            }
            _ if text.contains("not an integer") || text.contains("WRONGTYPE") => {
                Failed::Finally(status(Code::FailedPrecondition))
            }
            _ if text.contains("overflow") => Failed::Finally(status(Code::OutOfRange)),
            _ => Failed::Finally(status(Code::Unknown)),
        },
    }
}

/// What is said there is no answer of a Redis server, and will not be if it is asked again.
fn unreadable(error: &RedisError) -> Failed {
    // The parser's are of several lines.
    let text = error.to_string().replace('\n', " ");
    let text = text!("what answers is no Redis server: {}", shown::text(&text));
    Failed::Finally(Status::new(Code::DataLoss, text))
}

impl Connection {
    pub fn new(link: ClientSocket) -> Connection {
        Connection { link, parser: Parser::new() }
    }

    /// One that has ended, or says what nobody asked for, does not.
    pub fn rests(&self) -> bool {
        self.link.is_silent()
    }

    /// Sends a command, and reads its answer: what the server says, and its refusal. After a failure the connection is of no
    /// use any more.
    pub fn ask(
        &mut self,
        command: &Cmd,
        effect: Effect,
        until: Until<'_>,
    ) -> Result<Result<Value, RedisError>, Failed> {
        // A part of it is no command.
        let sent = self.link.send(&command.get_packed_command(), until);
        sent.inspect_err(|_| self.link.abandon())?;
        let mut answer = Answer { link: &self.link, until, left: MAX_ANSWER, failed: None };
        let failed = match (self.parser.parse_value(&mut answer), answer.failed) {
            (_, Some(Failed::Again(why))) => effect.unheard(why),
            (_, Some(failed)) => failed,
            (Ok(Value::ServerError(error)), None) => return Ok(Err(error.into())),
            (Ok(value), None) => return Ok(Ok(value)),
            (Err(error), None) => unreadable(&error),
        };
        self.link.abandon();
        Err(failed)
    }
}

impl Read for Answer<'_> {
    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        let most = piece.len().min(self.left);
        let read = match most {
            0 => {
                let text = text!("an answer of more than {MAX_ANSWER} bytes");
                Err(Failed::Finally(Status::new(Code::DataLoss, text)))
            }
            _ if self.left == MAX_ANSWER => self.link.read(&mut piece[..most], self.until),
            _ => self.link.read_on(&mut piece[..most], self.until),
        };
        match read {
            Ok(count) => {
                self.left -= count;
                Ok(count)
            }
            Err(failed) => {
                self.failed = Some(failed);
                Err(io::ErrorKind::BrokenPipe.into())
            }
        }
    }
}
