//! Tests of profiles and of requests that are checked against them.

mod files;
mod requests;

use std::path::Path;

use super::*;

/// A profile with every key.
const FULL: &str = r#"
description = "Clusters for development"
platform = "aws"
versions = ["4.18.9", "4.19.1", "4.20.0-rc.2"]
default_version = "4.19.1"
installers = { "4.18.9" = "old/openshift-install-{version}" }
regions = ["us-east-1", "eu-west-1"]
default_region = "eu-west-1"
base_domains = ["dev.example.com", "test.example.com", "other.example.com"]
ttl = { min = "1h", max = "3d", default = "8h" }
workers = { min = 2, max = 6, default = 3 }
required_tags = ["team"]
reserved_tags = ["billing/", "internal-*", "Cost"]
tags = { environment = "dev" }
owner_pattern = "[a-z]+@example[.]com|team-[a-z]+"
allow_preserve = true
pull_secret_file = "pull-secret.json"
ssh_key_file = "/etc/ssh.pub"
preflight = ["./preflight", "--quick"]
[install_config.networking]
networkType = "OVNKubernetes"
"#;

/// The keys that every profile on AWS has.
const LEAST: &str = "platform = \"aws\"\nversions = [\"4.19.1\"]\nregions = [\"us-east-1\"]\n\
                     base_domains = [\"dev.example.com\"]\n";

fn parse(text: &str) -> Result<Profile, String> {
    Profile::parse(text, "p", Path::new("/etc/profiles")).map_err(|bad| bad.to_string())
}
