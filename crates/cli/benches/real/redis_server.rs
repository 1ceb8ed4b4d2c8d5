//! A Redis server in memory, and a token bucket in it.

use crate::Failure;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The variable that names the program.
const VARIABLE: &str = "TOLLGATE_REDIS_SERVER";
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A token bucket as it is usually written for Redis: one key with tokens and time, and the server's own clock.
const TOKEN_BUCKET: &str = r"
local rate, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local stored = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(stored[1]) or burst, tonumber(stored[2]) or now
tokens = math.min(burst, tokens + math.max(0, now - at) * rate)
local granted = 0
if tokens >= cost then
  tokens = tokens - cost
  granted = 1
end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'at', now)
redis.call('PEXPIRE', KEYS[1], math.ceil(burst / rate * 1000) + 1000)
return granted
";

/// The running server. Dropping it kills it.
pub(crate) struct RedisServer {
    child: Child,
    url: String,
}

impl RedisServer {
    pub(crate) fn start() -> Result<RedisServer, Failure> {
        let program = std::env::var_os(VARIABLE).unwrap_or_else(|| "redis-server".into());
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut command = Command::new(&program);
        command.args([
            "--bind",
            "127.0.0.1",
            "--port",
            &port.to_string(),
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command
            .spawn()
            .map_err(|error| format!("{}: {error}; {VARIABLE} names a redis-server", program.display()))?;
        let server = RedisServer { child, url: format!("redis://127.0.0.1:{port}/") };
        let until = Instant::now() + START_TIMEOUT;
        while let Err(error) = server.connect() {
            if Instant::now() > until {
                return Err(format!("redis-server takes no connections: {error}").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// A connection of its own, as another process would have it.
    pub(crate) fn connect(&self) -> Result<Bucket, Failure> {
        let connection = redis::Client::open(self.url.as_str())?.get_connection()?;
        Ok(Bucket { connection, script: redis::Script::new(TOKEN_BUCKET) })
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// One client's way to the bucket.
pub(crate) struct Bucket {
    connection: redis::Connection,
    script: redis::Script,
}

impl Bucket {
    /// Takes one token.
    pub(crate) fn take(&mut self, rate: u64, burst: u64) -> Result<bool, Failure> {
        let mut call = self.script.key("tollgate-bench");
        call.arg(rate).arg(burst).arg(1);
        Ok(call.invoke(&mut self.connection)?)
    }
}
