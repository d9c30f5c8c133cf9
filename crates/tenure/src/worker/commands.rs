//! Workers that run the declared commands of operations.

use tenure_core::Kinds;

use super::{Command, Worker};

impl Worker {
    /// Runs the declared command of every operation that has one (`run = […]`).
    ///
    /// The executable of this process must call [`crate::exec::run_helper`] first in its `main`.
    pub fn commands(self, kinds: &Kinds) -> Self {
        self.commands_with(kinds, |command| command)
    }

    /// Like [`Worker::commands`], but passes each command through `adapt`.
    pub fn commands_with(mut self, kinds: &Kinds, adapt: impl Fn(Command) -> Command) -> Self {
        for kind in kinds.iter() {
            for operation in kind.operations.values().filter(|operation| !operation.run.is_empty())
            {
                let command = adapt(Command::declared(operation));
                self = self.handle_operation(&kind.name, &operation.name, command);
            }
        }
        self
    }
}
