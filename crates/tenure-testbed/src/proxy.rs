//! A TCP proxy with fault injection: it can disconnect when a pattern passes, drop bytes, or refuse
//! connections.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::{Context, Result};

/// A network fault. Patterns are searched in what the client sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    None,
    /// Disconnects after forwarding the pattern.
    DisconnectAfter(Vec<u8>),
    /// Disconnects instead of forwarding the pattern.
    DisconnectBefore(Vec<u8>),
    /// Forwards the pattern, then switches to [`Fault::DropResponses`].
    DropResponsesAfter(Vec<u8>),
    /// Forwards requests and silently drops responses.
    DropResponses,
    /// Switches to [`Fault::Blackhole`] instead of forwarding the pattern.
    BlackholeBefore(Vec<u8>),
    /// Silently drops everything in both directions.
    Blackhole,
    /// Closes all connections and refuses new ones.
    Down,
}

/// A proxy that runs until the process exits.
pub struct Proxy {
    addr: SocketAddr,
    state: Arc<State>,
}

struct State {
    /// Upstream port of new connections.
    port: AtomicU16,
    fault: Mutex<Fault>,
    streams: Mutex<Vec<TcpStream>>,
    /// Number of times a pattern has triggered a fault.
    triggered: Mutex<usize>,
}

impl Proxy {
    /// Listens on a free port and forwards to `port`.
    pub fn start(port: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen")?;
        let addr = listener.local_addr().context("listen")?;
        let state = State {
            port: AtomicU16::new(port),
            fault: Mutex::new(Fault::None),
            streams: Mutex::default(),
            triggered: Mutex::new(0),
        };
        let state = Arc::new(state);
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let port = shared.port.load(Ordering::SeqCst);
                if shared.fault() != Fault::Down
                    && let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
                {
                    shared.connect(client, server).ok();
                }
            }
        });
        Ok(Self { addr, state })
    }

    /// Returns the port it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// Forwards new connections to another port, as after a fail-over.
    pub fn redirect(&self, port: u16) {
        self.state.port.store(port, Ordering::SeqCst);
    }

    /// Sets the current fault.
    pub fn set_fault(&self, fault: Fault) {
        let down = fault == Fault::Down;
        *self.state.fault.lock().expect("no panic") = fault;
        if down {
            self.disconnect_all();
        }
    }

    /// Closes all connections.
    pub fn disconnect_all(&self) {
        for stream in self.state.streams.lock().expect("no panic").drain(..) {
            stream.shutdown(Shutdown::Both).ok();
        }
    }

    /// Returns the number of times a pattern has triggered a fault.
    #[must_use]
    pub fn triggered(&self) -> usize {
        *self.state.triggered.lock().expect("no panic")
    }
}

impl State {
    fn fault(&self) -> Fault {
        self.fault.lock().expect("no panic").clone()
    }

    fn trigger(&self, fault: Fault) {
        *self.fault.lock().expect("no panic") = fault;
        *self.triggered.lock().expect("no panic") += 1;
    }

    fn connect(self: &Arc<Self>, client: TcpStream, server: TcpStream) -> Result<()> {
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        self.streams.lock().expect("no panic").extend([client.try_clone()?, server.try_clone()?]);
        let (from, to) = (client.try_clone()?, server.try_clone()?);
        let (requests, responses) = (Arc::clone(self), Arc::clone(self));
        thread::spawn(move || requests.pump(from, to, true));
        thread::spawn(move || responses.pump(server, client, false));
        Ok(())
    }

    fn pump(&self, mut from: TcpStream, mut to: TcpStream, is_request: bool) {
        let (mut bytes, mut dropped) = (vec![0; 64 * 1024], false);
        while let Ok(count) = from.read(&mut bytes) {
            if count == 0 {
                break;
            }
            let chunk = &bytes[..count];
            let contains =
                |pattern: &[u8]| is_request && chunk.windows(pattern.len()).any(|w| w == pattern);
            match self.fault() {
                Fault::Down => break,
                // A TCP stream has no gaps: after dropped bytes nothing else may be forwarded, or
                // responses would be matched to the wrong requests.
                _ if dropped => continue,
                Fault::Blackhole => {
                    dropped = true;
                    continue;
                }
                Fault::DropResponses if !is_request => {
                    dropped = true;
                    continue;
                }
                Fault::DropResponsesAfter(pattern) if contains(&pattern) => {
                    self.trigger(Fault::DropResponses);
                }
                Fault::BlackholeBefore(pattern) if contains(&pattern) => {
                    self.trigger(Fault::Blackhole);
                    dropped = true;
                    continue;
                }
                Fault::DisconnectBefore(pattern) if contains(&pattern) => {
                    *self.triggered.lock().expect("no panic") += 1;
                    break;
                }
                Fault::DisconnectAfter(pattern) if contains(&pattern) => {
                    to.write_all(chunk).ok();
                    *self.triggered.lock().expect("no panic") += 1;
                    break;
                }
                _ => {}
            }
            if to.write_all(chunk).is_err() {
                break;
            }
        }
        from.shutdown(Shutdown::Both).ok();
        to.shutdown(Shutdown::Both).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Starts a server that echoes every byte.
    fn echo_server() -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("it listens").port();
        thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                thread::spawn(move || {
                    let mut byte = [0];
                    while client.read_exact(&mut byte).is_ok() && client.write_all(&byte).is_ok() {}
                });
            }
        });
        port
    }

    #[test]
    fn nothing_is_forwarded_after_dropped_bytes() {
        let proxy = Proxy::start(echo_server()).expect("it starts");
        let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).expect("it is");
        let read_byte = |stream: &mut TcpStream| {
            let mut byte = [0];
            stream.read_exact(&mut byte).map(|()| byte[0])
        };
        let mut old = connect();
        old.write_all(b"a").expect("it is sent");
        assert_eq!(read_byte(&mut old).expect("no fault is set"), b'a');
        proxy.set_fault(Fault::BlackholeBefore(b"b".to_vec()));
        old.write_all(b"b").expect("it is sent");
        while proxy.triggered() == 0 {
            thread::yield_now();
        }
        proxy.set_fault(Fault::None);
        old.write_all(b"c").expect("it is sent");
        let mut new = connect();
        new.write_all(b"d").expect("it is sent");
        assert_eq!(read_byte(&mut new).expect("the fault is cleared"), b'd');
        old.set_read_timeout(Some(Duration::from_millis(300))).expect("it is set");
        assert!(read_byte(&mut old).is_err(), "the stream has a gap");
    }
}
