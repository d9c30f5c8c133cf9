//! Which addresses HTTP steps may connect to.
//!
//! Addresses where clouds serve credentials of the machine are refused unless they are allowed:
//! link-local ones, and some others. Names are resolved by [`Resolver`], which removes refused
//! addresses, so that what was checked is what is connected to.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tenure_app::Live;

use crate::catalog::Catalog;

/// Networks that are refused by default.
const REFUSED: [Network; 6] = [
    // Link-local.
    Network { address: IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)), prefix: 16 },
    Network { address: IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), prefix: 10 },
    // Metadata of AWS and of Google Cloud.
    Network {
        address: IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
        prefix: 128,
    },
    Network { address: IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)), prefix: 128 },
    // Metadata of Alibaba Cloud, and the host agent of Azure.
    Network { address: IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)), prefix: 32 },
    Network { address: IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)), prefix: 32 },
];

/// Prefix of addresses that a NAT64 gateway translates to IPv4.
const NAT64: Network =
    Network { address: IpAddr::V6(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0)), prefix: 96 };

/// A range of addresses, like `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    fn contains(&self, address: IpAddr) -> bool {
        let shift = |bits: u8| u32::from(bits - self.prefix);
        match (self.address, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let differing = network.to_bits() ^ address.to_bits();
                differing.checked_shr(shift(32)).unwrap_or(0) == 0
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let differing = network.to_bits() ^ address.to_bits();
                differing.checked_shr(shift(128)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("{text:?} is not an address or a network like 10.0.0.0/8");
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| expected())?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix: u8 = prefix.map_or(Ok(bits), str::parse).map_err(|_| expected())?;
        if prefix > bits {
            return Err(expected());
        }
        // Addresses are compared in this form, too.
        match (address.to_canonical(), prefix.checked_sub(96)) {
            (mapped @ IpAddr::V4(_), Some(prefix)) if bits == 128 => {
                Ok(Self { address: mapped, prefix })
            }
            _ => Ok(Self { address, prefix }),
        }
    }
}

/// Addresses that HTTP steps may connect to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressPolicy {
    /// Exceptions from what is refused.
    pub allow: Vec<Network>,
    /// Refused networks besides those that are refused by default.
    pub deny: Vec<Network>,
}

impl AddressPolicy {
    /// Returns whether a step may connect to an address.
    #[must_use]
    pub fn permits(&self, address: IpAddr) -> bool {
        let address = reached(address);
        let within = |networks: &[Network]| networks.iter().any(|one| one.contains(address));
        within(&self.allow) || !(within(&self.deny) || within(&REFUSED))
    }

    /// Checks a URL whose host is an address, which is not resolved.
    pub(super) fn check(&self, url: &Url) -> Result<(), RefusedAddress> {
        let host = url.host_str().unwrap_or_default();
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        match address {
            Ok(address) if !self.permits(address) => Err(RefusedAddress),
            _ => Ok(()),
        }
    }
}

/// Returns the address that a connection to `address` reaches.
fn reached(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        IpAddr::V6(translated) if NAT64.contains(translated.into()) => {
            let [.., a, b, c, d] = translated.octets();
            Ipv4Addr::new(a, b, c, d).into()
        }
        other => other,
    }
}

/// A step may not connect to an address. Does not name it: the URL may contain a secret.
#[derive(Debug)]
pub(super) struct RefusedAddress;

impl fmt::Display for RefusedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "HTTP steps may not connect to the address of the server; see http_allow and \
             http_deny in [pipelines]",
        )
    }
}

impl std::error::Error for RefusedAddress {}

/// Where the policy of a client comes from.
pub enum PolicySource {
    /// The live settings, at the time of a request.
    Live(Live),
    /// A fixed policy.
    Fixed(AddressPolicy),
}

impl PolicySource {
    pub(crate) fn policy(&self) -> AddressPolicy {
        match self {
            Self::Live(live) => {
                let catalog = live.app::<Catalog>();
                catalog.map(|catalog| catalog.settings.addresses.clone()).unwrap_or_default()
            }
            Self::Fixed(policy) => policy.clone(),
        }
    }
}

/// Resolves names to the permitted addresses.
pub(super) struct Resolver(pub(super) PolicySource);

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let policy = self.0.policy();
        Box::pin(async move {
            let found: Vec<SocketAddr> =
                tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let any = !found.is_empty();
            let permitted: Vec<_> =
                found.into_iter().filter(|address| policy.permits(address.ip())).collect();
            if any && permitted.is_empty() {
                return Err(RefusedAddress.into());
            }
            Ok(Box::new(permitted.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(allow: &[&str], deny: &[&str]) -> AddressPolicy {
        let networks = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        AddressPolicy { allow: networks(allow), deny: networks(deny) }
    }

    fn permits(policy: &AddressPolicy, address: &str) -> bool {
        policy.permits(address.parse().unwrap())
    }

    #[test]
    fn addresses_of_credentials_are_refused_by_default() {
        let default = AddressPolicy::default();
        for refused in [
            "169.254.169.254",
            "169.254.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::169.254.169.254",
            "fe80::1",
            "febf::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "100.100.100.200",
            "168.63.129.16",
        ] {
            assert!(!permits(&default, refused), "{refused}");
        }
        for permitted in ["127.0.0.1", "10.1.2.3", "169.253.1.1", "::1", "fec0::1", "8.8.8.8"] {
            assert!(permits(&default, permitted), "{permitted}");
        }
    }

    #[test]
    fn networks_are_denied_and_exceptions_are_allowed() {
        let policy = policy(&["169.254.169.254", "10.0.0.0/8"], &["0.0.0.0/0", "::/0"]);
        for permitted in ["169.254.169.254", "10.255.0.1"] {
            assert!(permits(&policy, permitted), "{permitted}");
        }
        for refused in ["169.254.169.253", "11.0.0.1", "127.0.0.1", "2001:db8::1"] {
            assert!(!permits(&policy, refused), "{refused}");
        }
        for bad in ["", "10.0.0.0/33", "10.0.0.0/-1", "host", "10.0.0.0/x", "::/129"] {
            assert!(bad.parse::<Network>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn other_forms_of_a_denied_address_are_refused() {
        let loopback = policy(&[], &["127.0.0.0/8", "::1"]);
        for refused in ["127.0.0.1", "0.0.0.0", "::", "::1", "::ffff:127.0.0.1", "::ffff:0.0.0.0"] {
            assert!(!permits(&loopback, refused), "{refused}");
        }
        let mapped = policy(&[], &["::ffff:10.0.0.0/104"]);
        assert!(!permits(&mapped, "10.1.2.3") && permits(&mapped, "11.1.2.3"));
        assert!(!permits(&policy(&[], &["::ffff:10.0.0.1"]), "10.0.0.1"));
    }

    #[test]
    fn an_address_in_a_url_is_checked() {
        let default = AddressPolicy::default();
        for refused in [
            "http://169.254.169.254/",
            "http://[fe80::1]:80/",
            "http://[::ffff:a9fe:a9fe]/",
            "http://0xa9fea9fe/x",
            "http://user@169.254.43518/",
            "http://%31%369.254.169.254/",
        ] {
            assert!(default.check(&refused.parse().unwrap()).is_err(), "{refused}");
        }
        for permitted in ["http://127.0.0.1:1/", "https://example.com/", "http://[::1]/"] {
            assert!(default.check(&permitted.parse().unwrap()).is_ok(), "{permitted}");
        }
    }
}
