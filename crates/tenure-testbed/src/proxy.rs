//! A TCP proxy that misbehaves when it is told to: cuts connections when a certain text passes,
//! swallows bytes, refuses to connect.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::{Context, Result};

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The connection is cut as soon as the client has sent this text, which still gets through.
    CutAfter(Vec<u8>),
    /// The connection is cut as soon as the client has sent this text, which does not get through.
    CutBefore(Vec<u8>),
    /// From the moment at which the client has sent this text, which still gets through, it is as
    /// with [`Fault::Mute`].
    MuteAfter(Vec<u8>),
    /// The server hears everything, and nothing that it says gets through.
    Mute,
    /// From the moment at which the client has sent this text, it is as with [`Fault::Hole`].
    HoleBefore(Vec<u8>),
    /// Nothing gets through, in either direction, and nobody is told.
    Hole,
    /// Every connection is cut, and no new one is taken.
    Down,
}

/// The proxy; it ends with the process.
pub struct Proxy {
    addr: SocketAddr,
    state: Arc<State>,
}

struct State {
    /// Where everything goes.
    port: AtomicU16,
    fault: Mutex<Fault>,
    streams: Mutex<Vec<TcpStream>>,
    /// How often a fault that waits for a text has happened.
    cuts: Mutex<usize>,
}

impl Proxy {
    /// Listens on a free port and passes everything on to `port`.
    pub fn start(port: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen")?;
        let addr = listener.local_addr().context("listen")?;
        let state = State {
            port: AtomicU16::new(port),
            fault: Mutex::new(Fault::None),
            streams: Mutex::default(),
            cuts: Mutex::new(0),
        };
        let state = Arc::new(state);
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let port = shared.port.load(Ordering::SeqCst);
                if shared.fault() != Fault::Down
                    && let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
                {
                    shared.join(client, server).ok();
                }
            }
        });
        Ok(Self { addr, state })
    }

    /// The port it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// New connections go to another port from now on, as after a fail-over.
    pub fn aim(&self, port: u16) {
        self.state.port.store(port, Ordering::SeqCst);
    }

    /// From now on, this goes wrong.
    pub fn set(&self, fault: Fault) {
        let down = fault == Fault::Down;
        *self.state.fault.lock().expect("no panic") = fault;
        if down {
            self.cut();
        }
    }

    /// Cuts every connection now.
    pub fn cut(&self) {
        for stream in self.state.streams.lock().expect("no panic").drain(..) {
            stream.shutdown(Shutdown::Both).ok();
        }
    }

    /// How often a fault that waits for a text has happened.
    #[must_use]
    pub fn cuts(&self) -> usize {
        *self.state.cuts.lock().expect("no panic")
    }
}

impl State {
    fn fault(&self) -> Fault {
        self.fault.lock().expect("no panic").clone()
    }

    fn turn_into(&self, fault: Fault) {
        *self.fault.lock().expect("no panic") = fault;
        *self.cuts.lock().expect("no panic") += 1;
    }

    fn join(self: &Arc<Self>, client: TcpStream, server: TcpStream) -> Result<()> {
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        self.streams.lock().expect("no panic").extend([client.try_clone()?, server.try_clone()?]);
        let (from, to) = (client.try_clone()?, server.try_clone()?);
        let (there, back) = (Arc::clone(self), Arc::clone(self));
        thread::spawn(move || there.pump(from, to, true));
        thread::spawn(move || back.pump(server, client, false));
        Ok(())
    }

    fn pump(&self, mut from: TcpStream, mut to: TcpStream, outward: bool) {
        let (mut bytes, mut lost) = (vec![0; 64 * 1024], false);
        while let Ok(count) = from.read(&mut bytes) {
            if count == 0 {
                break;
            }
            let part = &bytes[..count];
            let has = |text: &[u8]| outward && part.windows(text.len()).any(|w| w == text);
            match self.fault() {
                Fault::Down => break,
                // What was lost never comes, and so nothing that came after it can: a stream has no
                // gaps, and answers would be taken for those to other questions.
                _ if lost => continue,
                Fault::Hole => {
                    lost = true;
                    continue;
                }
                Fault::Mute if !outward => {
                    lost = true;
                    continue;
                }
                Fault::MuteAfter(text) if has(&text) => self.turn_into(Fault::Mute),
                Fault::HoleBefore(text) if has(&text) => {
                    self.turn_into(Fault::Hole);
                    lost = true;
                    continue;
                }
                Fault::CutBefore(text) if has(&text) => {
                    *self.cuts.lock().expect("no panic") += 1;
                    break;
                }
                Fault::CutAfter(text) if has(&text) => {
                    to.write_all(part).ok();
                    *self.cuts.lock().expect("no panic") += 1;
                    break;
                }
                _ => {}
            }
            if to.write_all(part).is_err() {
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

    /// Says back what it hears, on every connection.
    fn echo() -> u16 {
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
    fn nothing_comes_through_a_connection_after_what_was_lost() {
        let proxy = Proxy::start(echo()).expect("it starts");
        let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).expect("it is");
        let heard = |stream: &mut TcpStream| {
            let mut byte = [0];
            stream.read_exact(&mut byte).map(|()| byte[0])
        };
        let mut old = connect();
        old.write_all(b"a").expect("it is sent");
        assert_eq!(heard(&mut old).expect("nothing is wrong yet"), b'a');
        proxy.set(Fault::HoleBefore(b"b".to_vec()));
        old.write_all(b"b").expect("it is sent");
        while proxy.cuts() == 0 {
            thread::yield_now();
        }
        proxy.set(Fault::None);
        old.write_all(b"c").expect("it is sent");
        let mut new = connect();
        new.write_all(b"d").expect("it is sent");
        assert_eq!(heard(&mut new).expect("nothing is wrong any more"), b'd');
        old.set_read_timeout(Some(Duration::from_millis(300))).expect("it is set");
        assert!(heard(&mut old).is_err(), "a stream has a gap");
    }
}
