//! Redis locks by the usual recipe: `SET NX PX` with a unique token, compare-and-delete by script.
//!
//! Uses RESP directly on one connection per worker, two round trips per pair, so that no client
//! library is measured. A pair counts only if both commands succeed. This lock has no fencing
//! token, and is not safe when a replica takes over.

use std::io::Write as _;
use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::load::Pairs;

/// Maximum size of a reply, far above that of any expected one.
const REPLY_LEN_MAX: usize = 64 * 1024;

const TTL_MS: &[u8] = b"30000";

/// Compares the token, so that a late release does not free the lock of another holder.
const DELETE_IF_OWNED: &[u8] = b"if redis.call('GET', KEYS[1]) == ARGV[1] then \
    return redis.call('DEL', KEYS[1]) else return 0 end";

/// Connection of one worker.
pub(crate) struct RedisLocks {
    resp: Resp<TcpStream>,
    script_sha: Vec<u8>,
    token: Vec<u8>,
    key: Vec<u8>,
}

impl RedisLocks {
    pub(crate) async fn open(addr: SocketAddr, worker: usize) -> Result<Self> {
        let mut resp = Resp::connect(addr).await?;
        let script_sha = match resp.call(&[b"SCRIPT", b"LOAD", DELETE_IF_OWNED]).await? {
            Reply::Bulk(sha) => sha.to_vec(),
            other => bail!("load the release script: Redis returned {other:?}"),
        };
        let token = format!("{}:{worker}", std::process::id()).into_bytes();
        Ok(Self { resp, script_sha, token, key: Vec::new() })
    }

    async fn acquire(&mut self) -> Result<()> {
        let set: [&[u8]; 6] = [b"SET", &self.key, &self.token, b"NX", b"PX", TTL_MS];
        let reply = self.resp.call(&set).await.context("acquire a Redis lock")?;
        ensure!(reply == Reply::Status(b"OK"), "acquire a Redis lock: Redis returned {reply:?}");
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        let eval: [&[u8]; 5] = [b"EVALSHA", &self.script_sha, b"1", &self.key, &self.token];
        let reply = self.resp.call(&eval).await.context("release a Redis lock")?;
        ensure!(reply == Reply::Integer(1), "release a Redis lock: Redis returned {reply:?}");
        Ok(())
    }
}

impl Pairs for RedisLocks {
    async fn pair(&mut self, n: u64) -> Result<()> {
        self.key.clear();
        write!(self.key, "lock:{n}").context("format a key")?;
        self.acquire().await?;
        self.release().await
    }
}

/// Checks that a Redis responds.
pub(crate) async fn ping(addr: SocketAddr) -> Result<()> {
    let mut resp = Resp::connect(addr).await?;
    let reply = resp.call(&[b"PING"]).await?;
    ensure!(reply == Reply::Status(b"PONG"), "ping Redis: it returned {reply:?}");
    Ok(())
}

/// A reply to the commands above; an error reply is an `Err`.
#[derive(Debug, PartialEq)]
enum Reply<'a> {
    Status(&'a [u8]),
    Integer(i64),
    Bulk(&'a [u8]),
    Nil,
}

struct Resp<S> {
    stream: BufReader<S>,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl Resp<TcpStream> {
    async fn connect(addr: SocketAddr) -> Result<Self> {
        let stream =
            TcpStream::connect(addr).await.with_context(|| format!("connect to {addr}"))?;
        stream.set_nodelay(true).context("set TCP_NODELAY")?;
        Ok(Self::over(stream))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Resp<S> {
    fn over(stream: S) -> Self {
        Self { stream: BufReader::new(stream), request: Vec::new(), reply: Vec::new() }
    }

    /// Sends one command in one write and reads its reply.
    async fn call(&mut self, args: &[&[u8]]) -> Result<Reply<'_>> {
        self.write_request(args).context("format a Redis command")?;
        self.stream.write_all(&self.request).await.context("send a Redis command")?;
        self.read_line().await.context("read a Redis reply")?;
        let (kind, text) = self.reply.split_first().context("read a Redis reply: empty line")?;
        match kind {
            b'+' => Ok(Reply::Status(&self.reply[1..])),
            b':' => Ok(Reply::Integer(number(text)?)),
            b'$' if text == b"-1" => Ok(Reply::Nil),
            b'$' => {
                let len = usize::try_from(number(text)?).context("read the length of a string")?;
                self.read_bulk(len).await.context("read a Redis string")
            }
            _ => bail!("Redis returned {}", String::from_utf8_lossy(&self.reply)),
        }
    }

    fn write_request(&mut self, args: &[&[u8]]) -> std::io::Result<()> {
        let out = &mut self.request;
        out.clear();
        write!(out, "*{}\r\n", args.len())?;
        for arg in args {
            write!(out, "${}\r\n", arg.len())?;
            out.extend_from_slice(arg);
            out.extend_from_slice(b"\r\n");
        }
        Ok(())
    }

    /// Reads a line into `reply`, without its end.
    async fn read_line(&mut self) -> Result<()> {
        self.reply.clear();
        let mut bounded = (&mut self.stream).take(REPLY_LEN_MAX as u64);
        bounded.read_until(b'\n', &mut self.reply).await.context("read from the server")?;
        ensure!(self.reply.ends_with(b"\r\n"), "the line is truncated");
        self.reply.truncate(self.reply.len() - 2);
        Ok(())
    }

    async fn read_bulk(&mut self, len: usize) -> Result<Reply<'_>> {
        ensure!(len < REPLY_LEN_MAX, "it is longer than {REPLY_LEN_MAX} bytes");
        self.reply.resize(len + 2, 0);
        self.stream.read_exact(&mut self.reply).await.context("read from the server")?;
        ensure!(self.reply.ends_with(b"\r\n"), "its end is missing");
        Ok(Reply::Bulk(&self.reply[..len]))
    }
}

fn number(text: &[u8]) -> Result<i64> {
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .with_context(|| format!("parse the number {:?}", String::from_utf8_lossy(text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::{self, Durability};

    const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

    /// Returns what the client parses from `reply`, received in pieces of at most `piece` bytes.
    async fn parse_reply(reply: &[u8], piece: usize) -> Result<String> {
        let (client_end, mut server_end) = tokio::io::duplex(piece);
        let mut resp = Resp::over(client_end);
        let server = async move {
            let mut request = [0; PING.len()];
            server_end.read_exact(&mut request).await.unwrap();
            assert_eq!(request, PING);
            server_end.write_all(reply).await.ok();
        };
        let client = async move { Ok(format!("{:?}", resp.call(&[b"PING"]).await?)) };
        tokio::join!(client, server).0
    }

    #[tokio::test]
    async fn every_kind_of_reply_may_be_split_anywhere() {
        for piece in 1..16 {
            assert_eq!(parse_reply(b"+OK\r\n", piece).await.unwrap(), "Status([79, 75])");
            assert_eq!(parse_reply(b":1\r\n", piece).await.unwrap(), "Integer(1)");
            assert_eq!(parse_reply(b"$-1\r\n", piece).await.unwrap(), "Nil");
            assert_eq!(parse_reply(b"$3\r\na\r\n\r\n", piece).await.unwrap(), "Bulk([97, 13, 10])");
        }
    }

    #[tokio::test]
    async fn errors_and_invalid_replies_are_rejected() {
        let replies: [(&[u8], &str); 6] = [
            (b"-NOSCRIPT No matching script\r\n", "NOSCRIPT"),
            (b":x\r\n", "number"),
            (b"$65536\r\n", "longer than"),
            (b"$1\r\nabc", "end is missing"),
            (b"+OK", "truncated"),
            (&[b'+'; REPLY_LEN_MAX + 2], "truncated"),
        ];
        for (reply, why) in replies {
            let error = format!("{:#}", parse_reply(reply, 4096).await.unwrap_err());
            assert!(error.contains(why), "{error}");
        }
    }

    #[tokio::test]
    async fn pair_succeeds_and_a_held_lock_is_an_error() {
        let dir = std::env::temp_dir();
        let Some(server) = servers::redis(&dir, Durability::Memory).await.unwrap() else { return };
        let mut locks = RedisLocks::open(server.addr(), 0).await.unwrap();
        locks.pair(7).await.unwrap();
        locks.pair(7).await.unwrap();
        let mut other = Resp::connect(server.addr()).await.unwrap();
        other.call(&[b"SET", b"lock:7", b"other"]).await.unwrap();
        let error = format!("{:#}", locks.pair(7).await.unwrap_err());
        assert_eq!(error, "acquire a Redis lock: Redis returned Nil");
        let error = format!("{:#}", locks.release().await.unwrap_err());
        assert_eq!(error, "release a Redis lock: Redis returned Integer(0)");
    }
}
