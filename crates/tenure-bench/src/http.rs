//! A minimal HTTP/1.1 client on one connection, cheap enough not to distort the measurement.
//!
//! One write per request, one read per typical response, no allocation once the buffers have grown.
//! It never follows redirects, retries, pipelines, or reads a response without a bound. After an
//! error the connection is unusable.

use std::io::Write as _;
use std::net::SocketAddr;
use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// Maximum size of a response: head, chunk sizes and body.
const RESPONSE_LEN_MAX: usize = 1 << 20;

/// Size of one read; a typical response fits.
const READ_LEN: usize = 4096;

/// A persistent HTTP/1.1 connection.
pub struct Connection<S = TcpStream> {
    stream: S,
    host: String,
    request: Vec<u8>,
    /// Raw response.
    response: Vec<u8>,
    /// Joined body of a chunked response.
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
        Self { stream, host, request: Vec::new(), response: Vec::new(), joined: Vec::new() }
    }

    /// Posts JSON and returns the status and the body of the response.
    pub async fn post(
        &mut self,
        path: &str,
        extra_headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<(u16, &[u8])> {
        self.write_request(path, extra_headers, body).context("format an HTTP request")?;
        self.stream.write_all(&self.request).await.context("send an HTTP request")?;
        self.response.clear();
        let head = self.read_head().await.context("read the head of an HTTP response")?;
        let body = self.read_body(&head).await.context("read the body of an HTTP response")?;
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
        let mut head = Head::starting(&self.response[line.clone()])?;
        let mut at = line.end;
        loop {
            let line = self.line(at).await?;
            at = line.end;
            let text = self.response[line].trim_ascii();
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
            Framing::None => bail!("the response has neither a length nor chunks"),
        };
        ensure!(self.response.len() == end, "more than one response to one request");
        let chunked = head.framing == Framing::Chunked;
        Ok(if chunked { &self.joined } else { &self.response[head.end..end] })
    }

    /// Joins the chunks and returns the end of the response.
    async fn join_chunks(&mut self, mut at: usize) -> Result<usize> {
        self.joined.clear();
        loop {
            let line = self.line(at).await?;
            let len = chunk_len(&self.response[line.clone()])?;
            if len == 0 {
                return self.skip_trailers(line.end).await;
            }
            let chunk = self.bytes(line.end, len).await?;
            let end = self.line(chunk.end).await?;
            ensure!(self.response[end.clone()].trim_ascii().is_empty(), "a chunk is too long");
            self.joined.extend_from_slice(&self.response[chunk]);
            at = end.end;
        }
    }

    async fn skip_trailers(&mut self, mut at: usize) -> Result<usize> {
        loop {
            let line = self.line(at).await?;
            at = line.end;
            if self.response[line].trim_ascii().is_empty() {
                return Ok(at);
            }
        }
    }

    /// Returns the line that starts at `from`, with its end of line, and reads as far as needed.
    async fn line(&mut self, from: usize) -> Result<Range<usize>> {
        let mut searched = from;
        loop {
            if let Some(found) = self.response[searched..].iter().position(|byte| *byte == b'\n') {
                return Ok(from..searched + found + 1);
            }
            searched = self.response.len();
            self.fill().await?;
        }
    }

    /// Returns the `len` bytes that start at `from`, and reads as far as needed.
    async fn bytes(&mut self, from: usize, len: usize) -> Result<Range<usize>> {
        let end = from.saturating_add(len);
        ensure!(end <= RESPONSE_LEN_MAX, "the response is longer than {RESPONSE_LEN_MAX} bytes");
        while self.response.len() < end {
            self.fill().await?;
        }
        Ok(from..end)
    }

    async fn fill(&mut self) -> Result<()> {
        ensure!(
            self.response.len() < RESPONSE_LEN_MAX,
            "the response is longer than {RESPONSE_LEN_MAX} bytes"
        );
        self.response.reserve(READ_LEN);
        let read =
            self.stream.read_buf(&mut self.response).await.context("read from the server")?;
        ensure!(read > 0, "the server closed the connection in the middle of a response");
        Ok(())
    }
}

/// Framing of the body.
#[derive(Debug, PartialEq, Clone, Copy)]
enum Framing {
    None,
    Length(usize),
    Chunked,
}

struct Head {
    status: u16,
    framing: Framing,
    /// Offset at which the body starts.
    end: usize,
}

impl Head {
    fn starting(line: &[u8]) -> Result<Self> {
        let line = String::from_utf8_lossy(line);
        let status = line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.with_context(|| format!("parse the status line {line:?}"))?;
        ensure!(status >= 200, "the server sent an interim response {status}");
        Ok(Self { status, framing: Framing::None, end: 0 })
    }

    /// Processes a header. Chunked encoding overrides a length, as RFC 9112 requires.
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

/// Parses the size of a chunk in hex, optionally with an extension after a semicolon.
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

    /// Responds to one request with `response`, in pieces of at most `piece` bytes.
    async fn exchange(response: &str, piece: usize) -> Result<(u16, String)> {
        let (client_end, mut server_end) = tokio::io::duplex(piece);
        let mut connection = Connection::over(client_end, "test".to_owned());
        let server = async move {
            let mut request = [0; REQUEST.len()];
            server_end.read_exact(&mut request).await.unwrap();
            assert_eq!(request, REQUEST);
            // A client that has failed stops reading; it reports the error itself.
            server_end.write_all(response.as_bytes()).await.ok();
        };
        let client = async move {
            let (status, body) = connection.post("/v1/x", &[], b"{}").await?;
            Ok((status, String::from_utf8_lossy(body).into_owned()))
        };
        tokio::join!(client, server).0
    }

    async fn error_of(response: &str) -> String {
        format!("{:#}", exchange(response, 4096).await.unwrap_err())
    }

    #[tokio::test]
    async fn response_may_be_split_anywhere() {
        let sized = "HTTP/1.1 409 Conflict\r\ncontent-LENGTH: 4\r\nX: y\r\n\r\nheld".to_owned();
        let chunked = format!("{CHUNKED}3;ext=1\r\nhel\r\nA\r\nd by other\r\n0\r\nT: x\r\n\r\n");
        let empty = "HTTP/1.1 204 No Content\r\n\r\n";
        for piece in 1..=chunked.len() {
            assert_eq!(exchange(empty, piece).await.unwrap(), (204, String::new()));
            assert_eq!(exchange(&sized, piece).await.unwrap(), (409, "held".to_owned()));
            assert_eq!(exchange(&chunked, piece).await.unwrap(), (200, "held by other".to_owned()));
        }
    }

    #[tokio::test]
    async fn response_above_the_maximum_is_rejected() {
        let sized = format!("HTTP/1.1 200 OK\r\nContent-Length: {RESPONSE_LEN_MAX}\r\n\r\n");
        assert!(error_of(&sized).await.contains("longer than"));
        let chunk = format!("8000\r\n{}\r\n", "x".repeat(0x8000));
        assert!(error_of(&format!("{CHUNKED}{}", chunk.repeat(33))).await.contains("longer than"));
        assert!(error_of(&"x".repeat(RESPONSE_LEN_MAX + READ_LEN)).await.contains("longer than"));
    }

    #[tokio::test]
    async fn invalid_response_is_rejected() {
        for (response, why) in [
            ("HTTP/1.1 200 OK\r\n\r\n", "neither a length nor chunks"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhel", "in the middle"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nhel", "more than one response"),
            ("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "content length"),
            ("HTTP/1.1 100 Continue\r\n\r\n", "interim response"),
            ("SSH-2.0-OpenSSH\r\n", "status line"),
            (&format!("{CHUNKED}zz\r\n"), "chunk size"),
            (&format!("{CHUNKED}1\r\nhel\r\n"), "too long"),
        ] {
            let error = error_of(response).await;
            assert!(error.contains(why), "{response:?}: {error}");
        }
    }

    #[tokio::test]
    async fn one_connection_serves_many_requests_over_tcp() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut connection = Connection::open(listener.local_addr().unwrap()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        for body in ["one", "", "three"] {
            let response =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            server.write_all(response.as_bytes()).await.unwrap();
            let received = connection.post("/", &[("X-Key", "k")], body.as_bytes()).await.unwrap();
            assert_eq!(received, (200, body.as_bytes()));
        }
        drop(connection);
        let mut received = String::new();
        server.read_to_string(&mut received).await.unwrap();
        assert_eq!(received.matches("X-Key: k\r\n\r\n").count(), 3);
        assert!(received.ends_with("Content-Length: 5\r\nX-Key: k\r\n\r\nthree"), "{received}");
    }
}
