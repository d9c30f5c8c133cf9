//! An HTTP/1.1 client of one connection, cheap enough that the server is what gets measured.
//!
//! One write per request, one read per usual reply, no allocation once its buffers have grown. It
//! must never follow a redirect, retry, pipeline, or read a reply without a bound. After an error
//! the connection is of no more use.
//! Next: `etcd.rs` for a user of it; `load.rs` for what drives it.

use std::io::Write as _;
use std::net::SocketAddr;
use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// Head, chunk sizes and body together.
const REPLY_LEN_MAX: usize = 1 << 20;

/// Room for one read: a usual reply fits.
const READ_LEN: usize = 4096;

/// An HTTP/1.1 connection that is kept open.
pub struct Connection<S = TcpStream> {
    stream: S,
    host: String,
    request: Vec<u8>,
    /// The reply as it was received.
    reply: Vec<u8>,
    /// The body of a chunked reply, put together.
    joined: Vec<u8>,
}

impl Connection {
    /// Connects to a server.
    pub async fn open(addr: SocketAddr) -> Result<Self> {
        let stream =
            TcpStream::connect(addr).await.with_context(|| format!("connect to {addr}"))?;
        stream.set_nodelay(true).context("set TCP_NODELAY")?;
        Ok(Self::over(stream, addr.to_string()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    fn over(stream: S, host: String) -> Self {
        Self { stream, host, request: Vec::new(), reply: Vec::new(), joined: Vec::new() }
    }

    /// Posts JSON and gives the status and the body of the reply, whatever the status.
    pub async fn post(
        &mut self,
        path: &str,
        extra_headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<(u16, &[u8])> {
        self.write_request(path, extra_headers, body).context("format an HTTP request")?;
        self.stream.write_all(&self.request).await.context("send an HTTP request")?;
        self.reply.clear();
        let head = self.read_head().await.context("read the head of an HTTP reply")?;
        let body = self.read_body(&head).await.context("read the body of an HTTP reply")?;
        Ok((head.status, body))
    }

    fn write_request(
        &mut self,
        path: &str,
        extra_headers: &[(&str, &str)],
        body: &[u8],
    ) -> std::io::Result<()> {
        let out = &mut self.request;
        out.clear();
        write!(out, "POST {path} HTTP/1.1\r\nHost: {}\r\n", self.host)?;
        write!(out, "Content-Type: application/json\r\nContent-Length: {}\r\n", body.len())?;
        for (name, value) in extra_headers {
            write!(out, "{name}: {value}\r\n")?;
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(body);
        Ok(())
    }

    async fn read_head(&mut self) -> Result<Head> {
        let line = self.line(0).await?;
        let mut head = Head::starting(&self.reply[line.clone()])?;
        let mut at = line.end;
        loop {
            let line = self.line(at).await?;
            at = line.end;
            let text = self.reply[line].trim_ascii();
            if text.is_empty() {
                head.end = at;
                return Ok(head);
            }
            head.take(text)?;
        }
    }

    async fn read_body(&mut self, head: &Head) -> Result<&[u8]> {
        let end = match head.framing {
            Framing::Chunked => self.join_chunks(head.end).await?,
            Framing::Length(len) => self.bytes(head.end, len).await?.end,
            Framing::None if matches!(head.status, 204 | 304) => head.end,
            Framing::None => bail!("the reply has neither a length nor chunks"),
        };
        ensure!(self.reply.len() == end, "more than one reply came to one request");
        let chunked = head.framing == Framing::Chunked;
        Ok(if chunked { &self.joined } else { &self.reply[head.end..end] })
    }

    /// Gives where the reply ends.
    async fn join_chunks(&mut self, mut at: usize) -> Result<usize> {
        self.joined.clear();
        loop {
            let line = self.line(at).await?;
            let len = chunk_len(&self.reply[line.clone()])?;
            if len == 0 {
                return self.skip_trailers(line.end).await;
            }
            let chunk = self.bytes(line.end, len).await?;
            let end = self.line(chunk.end).await?;
            ensure!(self.reply[end.clone()].trim_ascii().is_empty(), "a chunk is too long");
            self.joined.extend_from_slice(&self.reply[chunk]);
            at = end.end;
        }
    }

    async fn skip_trailers(&mut self, mut at: usize) -> Result<usize> {
        loop {
            let line = self.line(at).await?;
            at = line.end;
            if self.reply[line].trim_ascii().is_empty() {
                return Ok(at);
            }
        }
    }

    /// The line that starts at `from`, with its end of line, read as far as needed.
    async fn line(&mut self, from: usize) -> Result<Range<usize>> {
        let mut searched = from;
        loop {
            if let Some(found) = self.reply[searched..].iter().position(|byte| *byte == b'\n') {
                return Ok(from..searched + found + 1);
            }
            searched = self.reply.len();
            self.fill().await?;
        }
    }

    /// The `len` bytes that start at `from`, read as far as needed.
    async fn bytes(&mut self, from: usize, len: usize) -> Result<Range<usize>> {
        let end = from.saturating_add(len);
        ensure!(end <= REPLY_LEN_MAX, "the reply is longer than {REPLY_LEN_MAX} bytes");
        while self.reply.len() < end {
            self.fill().await?;
        }
        Ok(from..end)
    }

    async fn fill(&mut self) -> Result<()> {
        ensure!(self.reply.len() < REPLY_LEN_MAX, "the reply is longer than {REPLY_LEN_MAX} bytes");
        self.reply.reserve(READ_LEN);
        let read = self.stream.read_buf(&mut self.reply).await.context("read from the server")?;
        ensure!(read > 0, "the server closed the connection in the middle of a reply");
        Ok(())
    }
}

/// Where the body is to be found.
#[derive(Debug, PartialEq, Clone, Copy)]
enum Framing {
    None,
    Length(usize),
    Chunked,
}

struct Head {
    status: u16,
    framing: Framing,
    /// Where the body starts.
    end: usize,
}

impl Head {
    fn starting(line: &[u8]) -> Result<Self> {
        let line = String::from_utf8_lossy(line);
        let status = line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.with_context(|| format!("parse the status line {line:?}"))?;
        ensure!(status >= 200, "the server sent an interim reply {status}");
        Ok(Self { status, framing: Framing::None, end: 0 })
    }

    /// Chunks win over a length, as RFC 9112 has it.
    fn take(&mut self, header: &[u8]) -> Result<()> {
        let colon = header.iter().position(|byte| *byte == b':').context("parse a header")?;
        let (name, value) = (&header[..colon], header[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            ensure!(value.eq_ignore_ascii_case(b"chunked"), "the transfer encoding is unknown");
            self.framing = Framing::Chunked;
        } else if name.eq_ignore_ascii_case(b"content-length") && self.framing == Framing::None {
            self.framing = Framing::Length(number(value, 10).context("parse a content length")?);
        }
        Ok(())
    }
}

/// A chunk's size in hex, with or without an extension after a semicolon.
fn chunk_len(line: &[u8]) -> Result<usize> {
    let size = line.split(|byte| *byte == b';').next().unwrap_or_default();
    number(size.trim_ascii(), 16).context("parse a chunk size")
}

fn number(digits: &[u8], radix: u32) -> Result<usize> {
    Ok(usize::from_str_radix(std::str::from_utf8(digits)?, radix)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: &[u8] = b"POST /v1/x HTTP/1.1\r\nHost: test\r\n\
        Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";

    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

    /// Answers one request with `reply`, handed over in pieces of at most `piece` bytes.
    async fn answer(reply: &str, piece: usize) -> Result<(u16, String)> {
        let (ours, mut theirs) = tokio::io::duplex(piece);
        let mut connection = Connection::over(ours, "test".to_owned());
        let server = async move {
            let mut request = [0; REQUEST.len()];
            theirs.read_exact(&mut request).await.unwrap();
            assert_eq!(request, REQUEST);
            // A client that has given up reads no further: that is for its own side to report.
            theirs.write_all(reply.as_bytes()).await.ok();
        };
        let client = async move {
            let (status, body) = connection.post("/v1/x", &[], b"{}").await?;
            Ok((status, String::from_utf8_lossy(body).into_owned()))
        };
        tokio::join!(client, server).0
    }

    async fn refused(reply: &str) -> String {
        format!("{:#}", answer(reply, 4096).await.unwrap_err())
    }

    #[tokio::test]
    async fn a_reply_may_be_split_anywhere() {
        let sized = "HTTP/1.1 409 Conflict\r\ncontent-LENGTH: 4\r\nX: y\r\n\r\nheld".to_owned();
        let chunked = format!("{CHUNKED}3;ext=1\r\nhel\r\nA\r\nd by other\r\n0\r\nT: x\r\n\r\n");
        let empty = "HTTP/1.1 204 No Content\r\n\r\n";
        for piece in 1..=chunked.len() {
            assert_eq!(answer(empty, piece).await.unwrap(), (204, String::new()));
            assert_eq!(answer(&sized, piece).await.unwrap(), (409, "held".to_owned()));
            assert_eq!(answer(&chunked, piece).await.unwrap(), (200, "held by other".to_owned()));
        }
    }

    #[tokio::test]
    async fn a_reply_over_the_bound_is_refused() {
        let sized = format!("HTTP/1.1 200 OK\r\nContent-Length: {REPLY_LEN_MAX}\r\n\r\n");
        assert!(refused(&sized).await.contains("longer than"));
        let chunk = format!("8000\r\n{}\r\n", "x".repeat(0x8000));
        assert!(refused(&format!("{CHUNKED}{}", chunk.repeat(33))).await.contains("longer than"));
        assert!(refused(&"x".repeat(REPLY_LEN_MAX + READ_LEN)).await.contains("longer than"));
    }

    #[tokio::test]
    async fn a_reply_that_breaks_the_protocol_is_refused() {
        for (reply, why) in [
            ("HTTP/1.1 200 OK\r\n\r\n", "neither a length nor chunks"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhel", "in the middle"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nhel", "more than one reply"),
            ("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "content length"),
            ("HTTP/1.1 100 Continue\r\n\r\n", "interim reply"),
            ("SSH-2.0-OpenSSH\r\n", "status line"),
            (&format!("{CHUNKED}zz\r\n"), "chunk size"),
            (&format!("{CHUNKED}1\r\nhel\r\n"), "too long"),
        ] {
            let refusal = refused(reply).await;
            assert!(refusal.contains(why), "{reply:?}: {refusal}");
        }
    }

    #[tokio::test]
    async fn one_connection_serves_many_requests_over_tcp() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut connection = Connection::open(listener.local_addr().unwrap()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        for body in ["one", "", "three"] {
            let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            server.write_all(reply.as_bytes()).await.unwrap();
            let answer = connection.post("/", &[("X-Key", "k")], body.as_bytes()).await.unwrap();
            assert_eq!(answer, (200, body.as_bytes()));
        }
        drop(connection);
        let mut received = String::new();
        server.read_to_string(&mut received).await.unwrap();
        assert_eq!(received.matches("X-Key: k\r\n\r\n").count(), 3);
        assert!(received.ends_with("Content-Length: 5\r\nX-Key: k\r\n\r\nthree"), "{received}");
    }
}
