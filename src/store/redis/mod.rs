//! The store in a Redis server.
//!
//! A key is a Redis string of the same name. Every operation is a script, which the server runs as one. Beside a key that
//! is under a lease lies another, `rdma-lease:` and its name, with the lease's number; both have the lease's ttl, which the
//! server takes down by itself: of a job that is dead nothing is left. A cluster, which spreads keys over servers, is not
//! supported.

mod connection;

use std::path::PathBuf;
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Cmd, Value};

use super::idle::Idle;
use super::lease::LeasedKeys;
use super::names::Names;
use super::socket::ClientSocket;
use super::{Compared, Effect, Failed, Kind, LeaseId, Until, patiently};
use crate::limits::{STORE_REPLY, STORE_VALUE};
use crate::room;
use crate::shown;
use crate::status::{Code, Status};
use connection::{Connection, judge};

/// Beginning of the keys that tell whose a key is.
const OWNER: &[u8] = b"rdma-lease:";
/// A try to connect takes no longer.
const TRY: Duration = Duration::from_secs(5);
/// Keys of one script.
const BATCH: usize = 256;

/// ARGV: lease or "", ttl in ms, values.
const SET: &str = "for i = 1, #KEYS, 2 do
  local k, o, v = KEYS[i], KEYS[i + 1], ARGV[(i + 1) / 2 + 2]
  if ARGV[1] == '' then redis.call('SET', k, v) redis.call('DEL', o)
  else redis.call('SET', k, v, 'PX', ARGV[2]) redis.call('SET', o, ARGV[1], 'PX', ARGV[2]) end
end return 1";
/// ARGV: longest value, longest sum. Of each key: nothing, its value, or why it has none.
const GET: &str = "local found, sum = {}, 0
for i, k in ipairs(KEYS) do
  local t = redis.call('TYPE', k).ok
  if t == 'none' then found[i] = {0, ''}
  elseif t ~= 'string' then found[i] = {2, t}
  else
    local n = redis.call('STRLEN', k)
    sum = sum + n
    if n > tonumber(ARGV[1]) then found[i] = {3, tostring(n)}
    elseif i > 1 and sum > tonumber(ARGV[2]) then return found
    else found[i] = {1, redis.call('GET', k)} end
  end
end return found";
const MISSING: &str = "local missing = {}
for i, k in ipairs(KEYS) do if redis.call('EXISTS', k) == 0 then missing[#missing + 1] = i - 1 end end
return missing";
/// ARGV: lease or "", ttl in ms, what is added.
const ADD: &str = "local n = redis.call('INCRBY', KEYS[1], ARGV[3])
if ARGV[1] == '' then redis.call('PERSIST', KEYS[1]) redis.call('DEL', KEYS[2])
else redis.call('PEXPIRE', KEYS[1], ARGV[2]) redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2]) end
return tostring(n) .. ':' .. redis.call('GET', KEYS[1])";
/// ARGV: lease or "", ttl in ms, the new value, "1" if one is expected, which. Answers as [`GET`] does for a key that
/// stays.
const COMPARE_SET: &str = "local t = redis.call('TYPE', KEYS[1]).ok
if t == 'none' then if ARGV[4] == '1' then return {0, ''} end
elseif t ~= 'string' then return {2, t}
else
  local v = redis.call('GET', KEYS[1])
  if ARGV[4] ~= '1' or v ~= ARGV[5] then
    if #v > tonumber(ARGV[6]) then return {3, tostring(#v)} end
    return {1, v}
  end
end
if ARGV[1] == '' then redis.call('SET', KEYS[1], ARGV[3]) redis.call('DEL', KEYS[2])
else redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[2]) redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2]) end
return {4, ''}";
const DELETE: &str = "local n = 0
for i = 1, #KEYS, 2 do n = n + redis.call('DEL', KEYS[i]) redis.call('DEL', KEYS[i + 1]) end
return n";
/// ARGV: lease, ttl in ms; 0: the keys of the lease are deleted.
const RENEW: &str = "for i = 1, #KEYS, 2 do
  if redis.call('GET', KEYS[i + 1]) == ARGV[1] then
    for j = i, i + 1 do
      if ARGV[2] == '0' then redis.call('DEL', KEYS[j]) else redis.call('PEXPIRE', KEYS[j], ARGV[2]) end
    end
  end
end return 1";

/// A store in one Redis server, with the connections that rest and the leases that this process holds.
pub struct RedisStore {
    name: String,
    at: At,
    password: Option<Vec<u8>>,
    idle: Idle<Connection>,
    held: LeasedKeys,
    ttls: Mutex<std::collections::HashMap<LeaseId, u64>>,
}

/// Where a server is.
enum At {
    Host(Names),
    File(PathBuf),
}

fn owner(key: &[u8]) -> Vec<u8> {
    [OWNER, key].concat()
}

fn lease_text(lease: Option<LeaseId>) -> String {
    lease.map_or_else(String::new, |id| format!("{id:032x}"))
}

impl RedisStore {
    /// A store at `address`, "host:port" or "unix:/path". Connects when it is used.
    pub fn new(address: &str, password: Option<&[u8]>) -> Result<RedisStore, Status> {
        let name = format!("redis store at {address}");
        let bad = |why: &str| {
            let text = text!("{name}: {why}; allowed are 'host:port' and 'unix:/path'");
            Status::invalid(text)
        };
        let at = match address.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => At::File(PathBuf::from(path)),
            Some(_) => return Err(bad("the path does not begin with '/'")),
            None => At::Host(Names::new(address).map_err(|status| match status.code {
                Code::ResourceExhausted => status,
                _ => bad(&status.message),
            })?),
        };
        let password = password.map(|p| crate::room::copy(p, "a password")).transpose()?;
        let (idle, (held, ttls)) = (Idle::new(), Default::default());
        Ok(RedisStore { name, at, password, idle, held, ttls })
    }

    fn connect(&self, until: Until<'_>) -> Result<Connection, Failed> {
        let link = match &self.at {
            At::File(path) => ClientSocket::unix(path)?,
            At::Host(names) => {
                let mut last = Err(Failed::Again(Status::new(Code::Unavailable, "no address")));
                for addr in names.resolve(until)? {
                    last = ClientSocket::tcp(addr, until.at_most(TRY));
                    if last.is_ok() {
                        break;
                    }
                    until.stop.check()?;
                }
                last?
            }
        };
        let mut connection = Connection::new(link);
        let until = until.at_most(TRY);
        let Some(password) = &self.password else {
            // Who wants a password breaks a long question off, without a word that would be heard.
            return match connection.ask(&redis::cmd("PING"), Effect::Look, until)? {
                // Who may not ask that may ask other things.
                Err(e) if e.code() != Some("NOPERM") => Err(judge(&e)),
                _ => Ok(connection),
            };
        };
        let mut auth = redis::cmd("AUTH");
        auth.arg(&password[..]);
        match connection.ask(&auth, Effect::Look, until)? {
            Ok(Value::Okay) => Ok(connection),
            Ok(_) => Err(strange().into()),
            Err(e) => {
                let text = text!("the password was refused: {}", shown::text(&e.to_string()));
                Err(Failed::Finally(Status::new(Code::Unauthenticated, text)))
            }
        }
    }

    /// Runs a command until it is answered.
    fn query(&self, command: &Cmd, effect: Effect, until: Until<'_>) -> Result<Value, Status> {
        patiently(&self.name, until, || {
            until.stop.check()?;
            // A connection that has rested may have ended unseen. To ask twice shows it, where that is not harmless.
            let mut connection = match self.idle.take(Connection::rests) {
                Some(connection) if effect != Effect::Once => connection,
                Some(mut connection) => {
                    let ping = connection.ask(&redis::cmd("PING"), Effect::Look, until)?;
                    ping.map_err(|e| judge(&e))?;
                    connection
                }
                None => self.connect(until)?,
            };
            let answer = connection.ask(command, effect, until)?;
            self.idle.keep(connection);
            answer.map_err(|e| judge(&e))
        })
    }

    fn script(&self, text: &str, keys: &[&[u8]], owners: bool) -> Result<Cmd, Status> {
        let mut command = redis::cmd("EVAL");
        command.arg(text).arg(keys.len() * if owners { 2 } else { 1 });
        for key in keys {
            if key.starts_with(OWNER) {
                let text = text!(
                    "key '{}' begins with '{}', which this store uses itself",
                    shown::key(key),
                    shown::key(OWNER)
                );
                return Err(Status::invalid(text));
            }
            command.arg(*key);
            if owners {
                command.arg(owner(key));
            }
        }
        Ok(command)
    }

    /// Lease and ttl as a script takes them; the keys belong to the lease from now on.
    fn under(
        &self,
        command: &mut Cmd,
        keys: &[&[u8]],
        lease: Option<LeaseId>,
    ) -> Result<(), Status> {
        let mut ttl = 0;
        if let Some(id) = lease {
            ttl = self.ttls.lock().get(&id).copied().unwrap_or(1);
            self.held.add(id, keys.iter().copied())?;
        }
        command.arg(lease_text(lease)).arg(ttl);
        Ok(())
    }

    /// Whose these keys are from now on. The command, which began after so many writes, was carried out.
    fn written(&self, keys: &[&[u8]], lease: Option<LeaseId>, writes: u64) -> Result<(), Status> {
        self.held.part(keys.iter().copied(), lease, writes);
        match lease {
            // A deletion beside this write may have come before it, and is heard of only now.
            Some(id) => self.held.add(id, keys.iter().copied()),
            None => Ok(()),
        }
    }

    fn for_lease(&self, id: LeaseId, ttl: u64, until: Until<'_>) -> Result<(), Status> {
        let keys = match ttl {
            0 => room::collect(self.held.end(id).into_keys(), "keys of a lease")?,
            _ => self.held.keys(id)?,
        };
        let keys = super::slices(&keys)?;
        for keys in keys.chunks(BATCH) {
            let mut command = self.script(RENEW, keys, true)?;
            command.arg(lease_text(Some(id))).arg(ttl);
            self.done(&command, until)?;
        }
        if keys.is_empty() && ttl > 0 {
            // That the server is there, and lets us in.
            match self.query(&redis::cmd("PING"), Effect::Look, until)? {
                Value::SimpleString(pong) if pong == "PONG" => {}
                _ => return Err(strange()),
            }
        }
        Ok(())
    }

    /// Runs a script that answers 1 once it is through.
    fn done(&self, command: &Cmd, until: Until<'_>) -> Result<(), Status> {
        match self.query(command, Effect::Write, until)? {
            Value::Int(1) => Ok(()),
            _ => Err(strange()),
        }
    }
}

fn strange() -> Status {
    Status::new(Code::DataLoss, "the server's answer is none that the script gives")
}

fn integer(value: &Value) -> Result<i64, Status> {
    match value {
        Value::Int(n) => Ok(*n),
        _ => Err(strange()),
    }
}

fn array(value: Value) -> Result<Vec<Value>, Status> {
    match value {
        Value::Array(values) => Ok(values),
        _ => Err(strange()),
    }
}

/// What [`GET`] tells of a key.
fn found(key: &[u8], value: Value) -> Result<(i64, Vec<u8>), Status> {
    let [what, bytes] = <[Value; 2]>::try_from(array(value)?).map_err(|_| strange())?;
    let (what, Value::BulkString(bytes)) = (integer(&what)?, bytes) else { return Err(strange()) };
    let text = match what {
        2 => {
            format!("key '{}' is a {} of Redis, not a string", shown::key(key), shown::key(&bytes))
        }
        3 => format!(
            "the value of key '{}' has {} bytes, allowed are {STORE_VALUE}",
            shown::key(key),
            shown::key(&bytes)
        ),
        _ => return Ok((what, bytes)),
    };
    Err(Status::new(Code::DataLoss, text))
}

impl Kind for RedisStore {
    fn name(&self) -> &str {
        &self.name
    }

    fn set(
        &self,
        items: &[(&[u8], &[u8])],
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<(), Status> {
        let mut at = 0;
        while at < items.len() {
            // As many as one reply could bring back.
            let mut bytes = 0;
            let fits = items[at..].iter().take(BATCH).take_while(|(_, value)| {
                bytes += value.len();
                bytes <= STORE_REPLY
            });
            let some = &items[at..at + fits.count().max(1)];
            let keys = room::collect(some.iter().map(|(key, _)| *key), "keys")?;
            let mut command = self.script(SET, &keys, true)?;
            self.under(&mut command, &keys, lease)?;
            for (_, value) in some {
                command.arg(*value);
            }
            let writes = self.held.writes();
            self.done(&command, until)?;
            self.written(&keys, lease, writes)?;
            at += some.len();
        }
        Ok(())
    }

    fn get(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<Option<Vec<u8>>>, Status> {
        let keys = &keys[..keys.len().min(BATCH)];
        let mut command = self.script(GET, keys, false)?;
        command.arg(STORE_VALUE).arg(STORE_REPLY);
        let values = array(self.query(&command, Effect::Look, until)?)?;
        // The first is always there.
        if values.is_empty() != keys.is_empty() || values.len() > keys.len() {
            return Err(strange());
        }
        let each = keys.iter().zip(values).map(|(key, value)| {
            let (what, bytes) = found(key, value)?;
            Ok((what == 1).then_some(bytes))
        });
        each.collect()
    }

    fn missing(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<usize>, Status> {
        let mut missing = Vec::new();
        for (batch, keys) in keys.chunks(BATCH).enumerate() {
            let found =
                array(self.query(&self.script(MISSING, keys, false)?, Effect::Look, until)?)?;
            for at in found {
                let at = usize::try_from(integer(&at)?).map_err(|_| strange())?;
                if at >= keys.len() {
                    return Err(strange());
                }
                room::grow(&mut missing, 1, "keys")?;
                missing.push(batch * BATCH + at);
            }
        }
        Ok(missing)
    }

    fn add(
        &self,
        key: &[u8],
        delta: i64,
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<i64, Status> {
        let mut command = self.script(ADD, &[key], true)?;
        self.under(&mut command, &[key], lease)?;
        command.arg(delta);
        // Lua's numbers are not exact beyond 53 bits: the text of the value is.
        let writes = self.held.writes();
        let Value::BulkString(text) = self.query(&command, Effect::Once, until)? else {
            return Err(strange());
        };
        self.written(&[key], lease, writes)?;
        let at = text.iter().position(|&b| b == b':').ok_or_else(strange)?;
        super::number(&text[at + 1..])
    }

    fn compare_set(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        desired: &[u8],
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<Compared, Status> {
        let mut command = self.script(COMPARE_SET, &[key], true)?;
        self.under(&mut command, &[key], lease)?;
        command.arg(desired).arg(i32::from(expected.is_some())).arg(expected.unwrap_or_default());
        command.arg(STORE_VALUE);
        let writes = self.held.writes();
        Ok(match found(key, self.query(&command, Effect::Once, until)?)? {
            (0, _) => Compared::Absent,
            (1, there) => Compared::Differs(there),
            (4, _) => {
                self.written(&[key], lease, writes)?;
                Compared::Set
            }
            _ => return Err(strange()),
        })
    }

    fn delete(&self, keys: &[&[u8]], until: Until<'_>) -> Result<usize, Status> {
        let mut count = 0;
        for keys in keys.chunks(BATCH) {
            let writes = self.held.writes();
            let command = self.script(DELETE, keys, true)?;
            let deleted = integer(&self.query(&command, Effect::Write, until)?)?;
            self.written(keys, None, writes)?;
            let deleted = usize::try_from(deleted).ok().filter(|&count| count <= keys.len());
            count += deleted.ok_or_else(strange)?;
        }
        Ok(count)
    }

    fn lease(&self, id: LeaseId, ttl: Duration, until: Until<'_>) -> Result<(), Status> {
        let ms = ttl.as_millis() as u64;
        self.held.begin(id)?;
        let mut ttls = self.ttls.lock();
        room::grow(&mut *ttls, 1, "leases")?;
        ttls.insert(id, ms);
        drop(ttls);
        self.for_lease(id, ms, until)
    }

    fn release(&self, id: LeaseId, until: Until<'_>) -> Result<(), Status> {
        self.ttls.lock().remove(&id);
        self.for_lease(id, 0, until)
    }

    fn forget(&self, id: LeaseId) {
        self.ttls.lock().remove(&id);
        self.held.end(id);
    }
}
