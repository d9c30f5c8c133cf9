//! Phases of the installer, with the messages that begin them.

/// Phase of a run of the installer, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Nothing is known yet.
    Starting,
    /// It generates files.
    Assets,
    /// From here on, resources may exist in the cloud.
    Infrastructure,
    /// The controllers that create resources run.
    Controllers,
    /// It waits for the network.
    Network,
    /// The network exists.
    NetworkReady,
    /// It waits for machines.
    Machines,
    /// It waits for the API.
    ApiWait,
    /// The API answers.
    ApiUp,
    /// The bootstrap machine creates the control plane.
    Bootstrap,
    /// The control plane runs, and the bootstrap machine is removed.
    BootstrapRemoval,
    /// It waits for the operators.
    Operators,
    /// It waits until operators make no more changes.
    Stability,
    /// The cluster runs.
    Complete,
    /// Resources are deleted.
    Destroying,
    /// All are deleted.
    Destroyed,
}

/// How the message begins that begins a phase, and what else it contains.
struct Marker {
    phase: Phase,
    start: &'static str,
    parts: &'static [&'static str],
}

const fn marker(phase: Phase, start: &'static str, parts: &'static [&'static str]) -> Marker {
    Marker { phase, start, parts }
}

const WAIT: &str = "Waiting up to ";

/// Messages of current and older versions.
const MARKERS: [Marker; 18] = [
    marker(Phase::Assets, "Consuming ", &[" from target directory"]),
    marker(Phase::Infrastructure, "Creating infrastructure resources", &[]),
    marker(Phase::Controllers, "Started local control plane with envtest", &[]),
    marker(Phase::Network, WAIT, &["for network infrastructure to become ready"]),
    marker(Phase::NetworkReady, "Network infrastructure is ready", &[]),
    marker(Phase::Machines, WAIT, &["for machines", "to provision"]),
    marker(Phase::ApiWait, WAIT, &["for the Kubernetes API"]),
    marker(Phase::ApiUp, "API v", &[" up"]),
    marker(Phase::ApiUp, "API up", &[]),
    marker(Phase::Bootstrap, WAIT, &["for bootstrapping to complete"]),
    marker(Phase::Bootstrap, WAIT, &["for the bootstrap-complete event"]),
    marker(Phase::BootstrapRemoval, "Destroying the bootstrap resources", &[]),
    marker(Phase::Operators, WAIT, &["for the cluster", "to initialize"]),
    marker(Phase::Stability, WAIT, &["to ensure each cluster operator has finished progressing"]),
    marker(Phase::Complete, "Install complete!", &[]),
    marker(Phase::Destroyed, "Uninstallation complete!", &[]),
    marker(Phase::Machines, "Waiting for machines", &["to provision"]),
    marker(Phase::ApiWait, "Waiting for the Kubernetes API", &[]),
];

impl Phase {
    /// All phases, in order.
    pub const ALL: [Self; 16] = [
        Self::Starting,
        Self::Assets,
        Self::Infrastructure,
        Self::Controllers,
        Self::Network,
        Self::NetworkReady,
        Self::Machines,
        Self::ApiWait,
        Self::ApiUp,
        Self::Bootstrap,
        Self::BootstrapRemoval,
        Self::Operators,
        Self::Stability,
        Self::Complete,
        Self::Destroying,
        Self::Destroyed,
    ];

    /// Returns the phase that a message begins.
    #[must_use]
    pub fn of_message(message: &str) -> Option<Self> {
        let begins = |marker: &&Marker| {
            message.starts_with(marker.start)
                && marker.parts.iter().all(|part| message.contains(part))
        };
        MARKERS.iter().find(begins).map(|marker| marker.phase)
    }

    /// Returns the percentage at its beginning.
    #[must_use]
    pub fn percent(self) -> u8 {
        match self {
            Self::Starting | Self::Destroying => 0,
            Self::Assets => 2,
            Self::Infrastructure => 5,
            Self::Controllers => 7,
            Self::Network => 10,
            Self::NetworkReady => 20,
            Self::Machines => 25,
            Self::ApiWait => 35,
            Self::ApiUp => 45,
            Self::Bootstrap => 50,
            Self::BootstrapRemoval => 70,
            Self::Operators => 75,
            Self::Stability => 95,
            Self::Complete | Self::Destroyed => 100,
        }
    }

    /// Returns the share of the time of a typical install that has elapsed when it begins, in
    /// percent. Unlike the percentage it is proportional to time.
    #[must_use]
    pub fn elapsed_percent(self) -> u8 {
        match self {
            Self::Starting | Self::Assets | Self::Destroying => 0,
            Self::Infrastructure => 2,
            Self::Controllers => 3,
            Self::Network => 5,
            Self::NetworkReady => 15,
            Self::Machines => 16,
            Self::ApiWait => 22,
            Self::ApiUp => 30,
            Self::Bootstrap => 31,
            Self::BootstrapRemoval => 57,
            Self::Operators => 60,
            Self::Stability => 94,
            Self::Complete | Self::Destroyed => 100,
        }
    }

    /// Returns the description for people.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::Starting => "starting the installer",
            Self::Assets => "generating files",
            Self::Infrastructure => "creating infrastructure",
            Self::Controllers => "starting infrastructure controllers",
            Self::Network => "waiting for the network",
            Self::NetworkReady => "network is ready",
            Self::Machines => "waiting for machines",
            Self::ApiWait => "waiting for the Kubernetes API",
            Self::ApiUp => "Kubernetes API is up",
            Self::Bootstrap => "bootstrapping the control plane",
            Self::BootstrapRemoval => "removing the bootstrap machine",
            Self::Operators => "waiting for cluster operators",
            Self::Stability => "waiting for cluster operators to settle",
            Self::Complete => "install complete",
            Self::Destroying => "deleting resources",
            Self::Destroyed => "all resources deleted",
        }
    }
}
