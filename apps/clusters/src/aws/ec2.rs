//! Which resources of EC2 still exist.
//!
//! The Tagging API lists instances, NAT gateways and endpoints for an hour after their end, and a
//! destroyed cluster would seem to exist as long. EC2 itself knows their state.
//!
//! The protocol is forms and XML; only ids are read from it, which need no parser.

use std::collections::BTreeSet;
use std::time::Duration;

use regex::Regex;

use super::{AwsError, Client, Protocol, Service};

const EC2: Service = Service { name: "ec2", protocol: Protocol::Query, target: "" };
const VERSION: &str = "2016-11-15";
/// Number of ids of one request; a filter has at most 200 values.
const IDS_MAX: usize = 100;

/// A kind of resource that is listed after its end.
struct Kind {
    /// Its name in ARNs.
    name: &'static str,
    action: &'static str,
    id_filter: &'static str,
    state_filter: &'static str,
    /// States after its end. A state that is not known counts as one before it.
    ended: &'static [&'static str],
    /// Element with its id.
    element: &'static str,
}

const KINDS: [Kind; 3] = [
    Kind {
        name: "instance",
        action: "DescribeInstances",
        id_filter: "instance-id",
        state_filter: "instance-state-name",
        ended: &["terminated"],
        element: "instanceId",
    },
    Kind {
        name: "natgateway",
        action: "DescribeNatGateways",
        id_filter: "nat-gateway-id",
        state_filter: "state",
        // AWS removes a failed one.
        ended: &["deleted", "failed"],
        element: "natGatewayId",
    },
    Kind {
        name: "vpc-endpoint",
        action: "DescribeVpcEndpoints",
        id_filter: "vpc-endpoint-id",
        state_filter: "vpc-endpoint-state",
        ended: &["deleted"],
        element: "vpcEndpointId",
    },
];

/// Removes the resources that have ended from what the Tagging API listed in the region of the
/// client.
///
/// # Errors
///
/// Fails if a request fails.
pub async fn retain_existing(client: &Client, arns: &mut BTreeSet<String>) -> Result<(), AwsError> {
    for kind in &KINDS {
        let listed: Vec<(String, String)> = arns
            .iter()
            .filter_map(|arn| Some((id(arn, kind.name)?.to_owned(), arn.clone())))
            .collect();
        for chunk in listed.chunks(IDS_MAX) {
            let ids: Vec<&str> = chunk.iter().map(|(id, _)| id.as_str()).collect();
            let existing = existing(client, kind, &ids).await?;
            for (id, arn) in chunk {
                if !existing.contains(id) {
                    arns.remove(arn);
                }
            }
        }
    }
    Ok(())
}

/// Returns those of these ids that EC2 knows and that have not ended.
async fn existing(
    client: &Client,
    kind: &Kind,
    ids: &[&str],
) -> Result<BTreeSet<String>, AwsError> {
    let mut existing = describe(client, kind, &[(kind.id_filter, ids)]).await?;
    // In this order: what ends in between has ended.
    let filters = [(kind.id_filter, ids), (kind.state_filter, kind.ended)];
    for ended in describe(client, kind, &filters).await? {
        existing.remove(&ended);
    }
    Ok(existing)
}

/// Returns the ids that EC2 has with these filters.
async fn describe(
    client: &Client,
    kind: &Kind,
    filters: &[(&str, &[&str])],
) -> Result<BTreeSet<String>, AwsError> {
    let body = form(kind.action, filters);
    let answer = client.send(EC2, kind.action, body.into_bytes(), Duration::ZERO).await?;
    let invalid = |why: &str| AwsError::Answer {
        service: EC2.name,
        action: kind.action,
        why: why.to_owned(),
    };
    let answer = String::from_utf8(answer).map_err(|_| invalid("it is not UTF-8"))?;
    // Anything else, such as the page of a proxy, would mean that nothing exists.
    if !answer.contains(&format!("{}Response", kind.action)) {
        return Err(invalid("it is not that of EC2"));
    }
    let element = kind.element;
    let pattern = Regex::new(&format!("<{element}>([^<]*)</{element}>"));
    let pattern = pattern.map_err(|error| invalid(&error.to_string()))?;
    Ok(pattern.captures_iter(&answer).map(|found| found[1].to_owned()).collect())
}

/// Returns the id in an ARN of EC2 of this kind.
fn id<'a>(arn: &'a str, kind: &str) -> Option<&'a str> {
    let mut parts = arn.splitn(6, ':');
    let is_ec2 = parts.nth(2) == Some("ec2");
    let (found, id) = parts.nth(2)?.split_once('/')?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-';
    (is_ec2 && found == kind && !id.is_empty() && id.chars().all(allowed)).then_some(id)
}

/// Returns the request. All its values are letters, digits and hyphens, which need no encoding.
fn form(action: &str, filters: &[(&str, &[&str])]) -> String {
    let mut form = format!("Action={action}&Version={VERSION}");
    for ((filter, values), n) in filters.iter().zip(1..) {
        form.push_str(&format!("&Filter.{n}.Name={filter}"));
        for (value, at) in values.iter().zip(1..) {
            form.push_str(&format!("&Filter.{n}.Value.{at}={value}"));
        }
    }
    form
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_from_arns_of_ec2() {
        let arn = "arn:aws:ec2:us-east-1:123456789012:instance/i-0abc";
        assert_eq!(id(arn, "instance"), Some("i-0abc"));
        assert_eq!(id(arn, "natgateway"), None);
        assert_eq!(id("arn:aws:s3:::instance/i-0abc", "instance"), None);
        assert_eq!(id("arn:aws:ec2:us-east-1:1:instance/i&x=1", "instance"), None);
        assert_eq!(id("arn", "instance"), None);
    }

    #[test]
    fn a_request_has_ids_and_states() {
        let expected = "Action=DescribeNatGateways&Version=2016-11-15\
                        &Filter.1.Name=nat-gateway-id&Filter.1.Value.1=nat-1&Filter.1.Value.2=nat-2\
                        &Filter.2.Name=state&Filter.2.Value.1=deleted";
        let filters: [(&str, &[&str]); 2] =
            [("nat-gateway-id", &["nat-1", "nat-2"]), ("state", &["deleted"])];
        assert_eq!(form("DescribeNatGateways", &filters), expected);
    }
}
