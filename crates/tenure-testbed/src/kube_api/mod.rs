//! Imitation of a Kubernetes API server over TLS, with the machine API of OpenShift, for tests.
//!
//! Real clients talk to it; a test moves its machines with [`KubeApi::advance`] and plants faults.
//! Must never wait for time to pass, and never answer what it does not imitate as if it did.
//!
//! `objects.rs` stores any type, `routes.rs` answers, `watching.rs` streams events, `faults.rs`
//! misbehaves, `machines.rs` is the one controller. Another API adds its types with
//! [`Objects::register`] and a controller beside `machines.rs`.

mod certificates;
mod faults;
mod machines;
mod objects;
mod refusal;
mod routes;
mod selector;
mod server;
mod state;
mod watching;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use tokio::sync::oneshot;

use certificates::Certificates;
pub use faults::{Held, KubeFault};
pub use machines::{MACHINE_NAMESPACE, MACHINE_SETS, MACHINES, NODES, new_machine_set};
pub use objects::{Objects, ResourceType};
pub use refusal::Refusal;
pub use state::Request;

use faults::Action;
use state::{Shared, State};

/// The bearer token that the server accepts.
const TOKEN: &str = "stand-in-secret-token";

/// A running API server; dropping it stops it and closes its connections.
pub struct KubeApi {
    shared: Arc<Shared>,
    address: SocketAddr,
    certificates: Certificates,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl KubeApi {
    /// Starts a server with ready workers, spread over three zones.
    ///
    /// # Errors
    /// If `openssl` is not installed, or no port is free.
    pub fn start(workers: u32) -> Result<Self> {
        Self::start_in_zones(workers, &["eu-west-1a", "eu-west-1b", "eu-west-1c"])
    }

    /// Starts a server with ready workers, one MachineSet for each zone.
    ///
    /// # Errors
    /// If `openssl` is not installed, or no port is free.
    pub fn start_in_zones(workers: u32, zones: &[&str]) -> Result<Self> {
        let certificates = certificates::shared()?;
        let mut state = State::default();
        let zones: Vec<String> = zones.iter().map(|&zone| zone.to_owned()).collect();
        machines::populate(&mut state.objects, &mut state.machines, &zones, workers);
        let shared = Shared::new(state);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("start a runtime")?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port")?;
        listener.set_nonblocking(true).context("configure the listener")?;
        let address = listener.local_addr().context("find a free port")?;
        let (tls, served) = (Arc::clone(&certificates.server), Arc::clone(&shared));
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new().name("kube-api".to_owned()).spawn(move || {
            runtime.block_on(async {
                let serve = async { server::serve(listener.try_into()?, tls, served).await };
                tokio::select! {
                    _ = serve => {}
                    _ = stopped => {}
                }
            });
        });
        let thread = Some(thread.context("start a thread")?);
        Ok(Self { shared, address, certificates, stop: Some(stop), thread })
    }

    /// Returns the URL of the server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Returns a kubeconfig with a token.
    #[must_use]
    pub fn kubeconfig(&self) -> String {
        self.kubeconfig_for(&format!("token: {TOKEN}"))
    }

    /// Returns a kubeconfig with a client certificate.
    #[must_use]
    pub fn kubeconfig_with_certificate(&self) -> String {
        let Certificates { client_certificate, client_key, .. } = &self.certificates;
        self.kubeconfig_for(&format!(
            "client-certificate-data: {client_certificate}\n    client-key-data: {client_key}"
        ))
    }

    /// Returns a kubeconfig whose user has these fields, each line indented by four spaces.
    #[must_use]
    pub fn kubeconfig_for(&self, user: &str) -> String {
        let (url, authority) = (self.url(), &self.certificates.authority);
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: admin\nclusters:\n- name: demo\n  \
             cluster:\n    server: {url}\n    certificate-authority-data: {authority}\n\
             users:\n- name: admin\n  user:\n    {user}\n\
             contexts:\n- name: admin\n  context:\n    cluster: demo\n    user: admin\n"
        )
    }

    /// Returns the token that the server accepts.
    #[must_use]
    pub fn token(&self) -> &'static str {
        TOKEN
    }

    /// Reads or changes objects, as somebody else would.
    pub fn edit<R>(&self, edit: impl FnOnce(&mut Objects) -> R) -> R {
        self.shared.with(|state| edit(&mut state.objects))
    }

    /// Lets the machine controller run after every write until nothing changes.
    pub fn advance_by_itself(&self) {
        self.shared.with(|state| state.auto = true);
    }

    /// Performs one step of the machine controller. Returns whether anything changed.
    pub fn advance(&self) -> bool {
        self.shared.with(State::advance)
    }

    /// Performs steps of the machine controller until nothing changes.
    pub fn settle(&self) {
        self.shared.with(State::settle);
    }

    /// Makes the next nodes stay `NotReady`.
    pub fn stick_nodes(&self, count: usize) {
        self.shared.with(|state| state.machines.stick(count));
    }

    /// Lets stuck nodes become ready.
    pub fn unstick_nodes(&self) {
        self.shared.with(|state| state.machines.unstick());
    }

    /// Changes whether a node is ready, until the controller looks at it again.
    pub fn set_node_ready(&self, node: &str, ready: bool) {
        self.edit(|objects| machines::set_ready(objects, node, ready));
    }

    /// Plants a fault for the next request with this method and this part of its path or query.
    pub fn inject(&self, method: &str, path: &str, fault: KubeFault) {
        self.shared.lock().faults.plant(method, path, Action::Misbehave(fault));
    }

    /// Changes objects right before the next matching request is handled.
    pub fn edit_before(
        &self,
        method: &str,
        path: &str,
        edit: impl FnOnce(&mut Objects) + Send + 'static,
    ) {
        self.shared.lock().faults.plant(method, path, Action::EditFirst(Box::new(edit)));
    }

    /// Holds the next matching request until the handle is released or dropped.
    #[must_use]
    pub fn hold(&self, method: &str, path: &str) -> Held {
        self.shared.lock().faults.hold(method, path)
    }

    /// Returns how many planted faults no request has met.
    #[must_use]
    pub fn planted(&self) -> usize {
        self.shared.lock().faults.planted()
    }

    /// Sends a bookmark to every open watch that allows it.
    pub fn send_bookmarks(&self) {
        self.shared.with(|state| state.signals.bookmarks += 1);
    }

    /// Ends every open watch with the error 410.
    pub fn expire_watches(&self) {
        self.shared.with(|state| state.signals.expirations += 1);
    }

    /// Ends every open watch, as servers do after some minutes.
    pub fn end_watches(&self) {
        self.shared.with(|state| state.signals.ends += 1);
    }

    /// Forgets events and pages: watches and lists from earlier are refused with 410.
    pub fn compact(&self) {
        self.shared.with(|state| {
            state.objects.compact();
            state.pages.clear();
        });
    }

    /// Completes when exactly `count` watches are open.
    pub async fn until_watches(&self, count: usize) {
        self.shared.open_watches().wait_for(|&open| open == count).await.ok();
    }

    /// Returns all requests so far.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.shared.lock().requests.clone()
    }

    /// Returns all requests so far that could change something.
    #[must_use]
    pub fn writes(&self) -> Vec<Request> {
        self.requests().into_iter().filter(|request| request.method != "GET").collect()
    }
}

impl Drop for KubeApi {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            stop.send(()).ok();
        }
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
