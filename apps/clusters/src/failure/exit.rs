//! Exit codes of the installer, and what they say if no rule matches.

use super::class::Class;
use super::classify::Evidence;

/// Exit codes.
pub mod exit_code {
    /// Anything without a code of its own, such as missing permissions or quotas.
    pub const GENERIC: i32 = 1;
    /// The install-config is invalid; nothing was created.
    pub const INSTALL_CONFIG: i32 = 3;
    /// The infrastructure could not be created.
    pub const INFRASTRUCTURE: i32 = 4;
    /// The control plane did not come up.
    pub const BOOTSTRAP: i32 = 5;
    /// The operators did not come up.
    pub const OPERATORS: i32 = 6;
    /// The operators did not settle.
    pub const STABILITY: i32 = 7;
    /// It was interrupted by a signal.
    pub const INTERRUPTED: i32 = 8;
}

/// What an exit code says.
pub(super) struct Verdict {
    pub(super) reason: &'static str,
    pub(super) class: Class,
    pub(super) message: &'static str,
}

impl Verdict {
    /// Returns the verdict of the exit code, for a text without a matching rule.
    pub(super) fn of(evidence: &Evidence<'_>) -> Self {
        let (reason, class, message) = match evidence.exit_code {
            _ if evidence.timed_out => (
                "AttemptDeadlineExceeded",
                Class::Timeout,
                "The installer exceeded its time limit and was stopped. See its log for what it \
                 was waiting for.",
            ),
            Some(exit_code::INSTALL_CONFIG) => (
                "InvalidInstallConfig",
                Class::InvalidConfig,
                "The installer rejected the install-config. Correct the request or the profile.",
            ),
            Some(exit_code::INFRASTRUCTURE) => (
                "InfrastructureFailed",
                Class::Unknown,
                "The infrastructure could not be created. See the log of the installer.",
            ),
            Some(exit_code::BOOTSTRAP) => (
                "BootstrapFailed",
                Class::Timeout,
                "The control plane did not come up in time. Check the network of the cluster and \
                 whether its machines reach the image registry.",
            ),
            Some(exit_code::OPERATORS) => (
                "OperatorsNotReady",
                Class::Timeout,
                "The cluster operators did not become ready in time. See which one is degraded.",
            ),
            Some(exit_code::STABILITY) => (
                "OperatorsUnstable",
                Class::Timeout,
                "The cluster operators did not settle in time. See which one is progressing.",
            ),
            Some(exit_code::INTERRUPTED) => (
                "Interrupted",
                Class::Interrupted,
                "The installer was interrupted. The job continues on another worker.",
            ),
            None => (
                "InstallerKilled",
                Class::Unknown,
                "The installer was killed. Check the memory of the worker.",
            ),
            Some(_) => (
                "UnknownError",
                Class::Unknown,
                "No rule matches the output of the installer. See its log, and add a rule to \
                 `failure_rules`.",
            ),
        };
        Self { reason, class, message }
    }
}
