//! Settings that a test may change while the driver is in use.

use std::sync::atomic::{AtomicU64, Ordering};

/// A setting. An environment variable sets its first value; the crate's page has the names.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variable {
    /// The number of hardware queues, which all streams share.
    Connections,
    /// The nanoseconds between two ticks of a kernel's timer.
    TimerTickNs,
    /// The nanoseconds that the device takes to launch a kernel.
    LaunchNs,
    /// The nanoseconds that a stream takes to wait for an event or a value that is reached already.
    WaitNs,
    /// The bytes of device memory that a context takes.
    ContextMemory,
    /// The bytes of a page of pinned memory. The device has an entry in a table for each page.
    HostPage,
    /// 1 if all kernels of a module are loaded with it, and 0 if each is loaded at its first launch.
    EagerLoading,
}

impl Variable {
    const ALL: [Self; 7] = [
        Self::Connections,
        Self::TimerTickNs,
        Self::LaunchNs,
        Self::WaitNs,
        Self::ContextMemory,
        Self::HostPage,
        Self::EagerLoading,
    ];

    const fn name(self) -> &'static str {
        match self {
            // The names of a real driver.
            Self::EagerLoading => "CUDA_MODULE_LOADING",
            Self::Connections => "CUDA_DEVICE_MAX_CONNECTIONS",
            Self::TimerTickNs => "EMULATED_CUDA_TIMER_TICK_NS",
            Self::LaunchNs => "EMULATED_CUDA_LAUNCH_NS",
            Self::WaitNs => "EMULATED_CUDA_WAIT_NS",
            Self::ContextMemory => "EMULATED_CUDA_CONTEXT_MEMORY",
            Self::HostPage => "EMULATED_CUDA_HOST_PAGE",
        }
    }

    const fn default(self) -> u64 {
        match self {
            Self::Connections => 8,
            Self::TimerTickNs => 1,
            Self::LaunchNs | Self::WaitNs | Self::EagerLoading => 0,
            Self::ContextMemory => 4 << 20,
            Self::HostPage => 4096,
        }
    }

    /// Returns the setting of a number that [`Emulated`](crate::Emulated) has passed.
    pub(crate) fn of_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }
}

/// The values of all settings.
#[derive(Debug)]
pub(crate) struct Variables([AtomicU64; Variable::ALL.len()]);

impl Variables {
    /// Reads the environment.
    pub(crate) fn from_environment() -> Self {
        Self(Variable::ALL.map(|variable| AtomicU64::new(Self::initial(variable))))
    }

    fn initial(variable: Variable) -> u64 {
        if variable == Variable::EagerLoading {
            return std::env::var(variable.name()).is_ok_and(|mode| mode == "EAGER").into();
        }
        crate::settings::variable(variable.name(), variable.default())
    }

    pub(crate) fn get(&self, variable: Variable) -> u64 {
        self.0[variable as usize].load(Ordering::SeqCst)
    }

    pub(crate) fn set(&self, variable: Variable, value: u64) {
        self.0[variable as usize].store(value, Ordering::SeqCst);
    }

    /// Sets all settings to the values of the environment.
    pub(crate) fn reset(&self) {
        Variable::ALL.into_iter().for_each(|variable| self.set(variable, Self::initial(variable)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_name_the_settings() {
        for variable in Variable::ALL {
            assert_eq!(Variable::of_number(variable as u32), Some(variable));
        }
        assert_eq!(Variable::of_number(Variable::ALL.len() as u32), None);
    }

    #[test]
    fn what_was_changed_is_reset() {
        let variables = Variables::from_environment();
        let before = variables.get(Variable::Connections);
        variables.set(Variable::Connections, before + 1);
        assert_eq!(variables.get(Variable::Connections), before + 1);
        variables.reset();
        assert_eq!(variables.get(Variable::Connections), before);
    }
}
