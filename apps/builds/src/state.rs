//! States of builds and of tests, as resources of their kinds.

/// Defines states with their spelling.
macro_rules! states {
    ($(#[$doc:meta])+ $name:ident { $($(#[$state_doc:meta])+ $state:ident = $text:literal,)+ }) => {
        $(#[$doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$state_doc])+ $state,)+
        }

        impl $name {
            /// All states, the initial one first.
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$state),+];

            /// Returns the stored spelling.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$state => $text,)+ }
            }

            /// Parses the stored spelling.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|state| state.as_str() == text)
            }
        }
    };
}

states! {
    /// State of a build.
    BuildState {
        /// No node leads.
        New = "NEW",
        /// The leader publishes the tests.
        Setup = "SETUP",
        /// The tests of one term are published.
        Ready = "READY",
        /// The setup failed, or all its leaders were lost.
        Failed = "FAILED",
    }
}

states! {
    /// State of a test.
    TestState {
        /// Not run yet, or to be run again.
        Pending = "PENDING",
        /// A node runs it.
        Running = "RUNNING",
        /// It passed.
        Passed = "PASSED",
        /// It failed, and is not to be run again.
        Failed = "FAILED",
        /// It failed, and is known to be flaky.
        Flaky = "FLAKY",
    }
}

impl TestState {
    /// Returns whether the result counts.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, Self::Passed | Self::Failed | Self::Flaky)
    }
}
