//! A TCP proxy that misbehaves when it is told to: cuts connections when a certain text passes,
//! swallows bytes, refuses to connect.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
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
    fault: Mutex<Fault>,
    streams: Mutex<Vec<TcpStream>>,
    /// How many connections were cut.
    cuts: Mutex<usize>,
}

impl Proxy {
    /// Listens on a free port and passes everything on to `port`.
    pub fn start(port: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen")?;
        let addr = listener.local_addr().context("listen")?;
        let state = State {
            fault: Mutex::new(Fault::None),
            streams: Mutex::default(),
            cuts: Mutex::new(0),
        };
        let state = Arc::new(state);
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
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

    /// How many connections the fault has cut.
    #[must_use]
    pub fn cuts(&self) -> usize {
        *self.state.cuts.lock().expect("no panic")
    }
}

impl State {
    fn fault(&self) -> Fault {
        self.fault.lock().expect("no panic").clone()
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
        let mut bytes = vec![0; 64 * 1024];
        while let Ok(count) = from.read(&mut bytes) {
            if count == 0 {
                break;
            }
            let part = &bytes[..count];
            let has = |text: &[u8]| outward && part.windows(text.len()).any(|w| w == text);
            match self.fault() {
                Fault::Hole => continue,
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
