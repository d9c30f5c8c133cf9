//! What exists of an installation, by its tags.
//!
//! Queues stand for resources of any kind; only moto also lists those of EC2 by their tags.

use futures_util::StreamExt as _;
use serde_json::Value;
use tenure_clusters::aws::sqs::Queue;
use tenure_clusters::aws::tagging::tag_keys;
use tenure_clusters::inventory::{AwsInventory, Inventory as _};
use tenure_clusters::status::Infra;
use tenure_core::Token;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::bed::{self, Cloud, REGION, element, on_both, unique};

/// Region of global resources.
const GLOBAL: &str = "us-east-1";

fn infra() -> Infra {
    Infra {
        infra_id: unique("demo"),
        cluster_id: "6f2c".to_owned(),
        region: REGION.to_owned(),
        token: Token(1),
        metadata: Value::Null,
    }
}

async fn list(cloud: Cloud, infra: &Infra) -> Vec<String> {
    // The region of the client does not matter.
    AwsInventory::new(cloud.client("us-west-2")).list(infra).await.unwrap()
}

/// Creates a resource with a tag, and returns its name.
async fn resource(cloud: Cloud, region: &str, key: &str, value: &str) -> String {
    let name = unique("resource");
    let form = format!(
        "Action=CreateQueue&Version=2012-11-05&QueueName={name}&Tag.1.Key={key}&Tag.1.Value={value}"
    );
    cloud.query("sqs", region, &form).await;
    name
}

fn names(arns: &[String]) -> Vec<&str> {
    arns.iter().map(|arn| arn.rsplit(':').next().expect("a name")).collect()
}

async fn resources_of_the_installation_are_listed(cloud: Cloud) {
    let (one, other) = (infra(), infra());
    assert_eq!(list(cloud, &one).await, Vec::<String>::new());
    let [installer, cluster_api] = tag_keys(&one.infra_id);
    let mut expected = vec![
        resource(cloud, REGION, &installer, "owned").await,
        resource(cloud, REGION, &cluster_api, "owned").await,
        resource(cloud, GLOBAL, &installer, "owned").await,
    ];
    // Others use it too: the installer does not destroy it.
    resource(cloud, REGION, &installer, "shared").await;
    resource(cloud, REGION, &tag_keys(&other.infra_id)[0], "owned").await;
    resource(cloud, REGION, &format!("{installer}-2"), "owned").await;
    resource(cloud, "ap-south-1", &installer, "owned").await;
    expected.sort();
    let found = list(cloud, &one).await;
    let mut found = names(&found);
    found.sort_unstable();
    assert_eq!(found, expected);
    assert_eq!(list(cloud, &other).await.len(), 1);
}

async fn all_pages_are_read(cloud: Cloud) {
    let infra = infra();
    let [key, _] = tag_keys(&infra.infra_id);
    let creates = (0..105).map(|_| resource(cloud, REGION, &key, "owned"));
    let names: Vec<String> =
        futures_util::stream::iter(creates).buffer_unordered(8).collect().await;
    assert_eq!(list(cloud, &infra).await.len(), names.len());
}

on_both!(resources_of_the_installation_are_listed);

/// A page of moto is lost if something else is created meanwhile.
#[tokio::test]
async fn all_pages_are_read_on_moto() {
    all_pages_are_read(bed::own_moto()).await;
}

#[tokio::test]
async fn all_pages_are_read_on_ministack() {
    all_pages_are_read(bed::ministack()).await;
}

#[tokio::test]
async fn a_terminated_instance_is_not_listed() {
    let (cloud, infra) = (bed::moto(), infra());
    let [key, _] = tag_keys(&infra.infra_id);
    let form = format!(
        "Action=RunInstances&Version=2016-11-15&ImageId=ami-12c6146b&MinCount=2&MaxCount=2\
         &TagSpecification.1.ResourceType=instance&TagSpecification.1.Tag.1.Key={key}\
         &TagSpecification.1.Tag.1.Value=owned"
    );
    let answer = cloud.query("ec2", REGION, &form).await;
    let instance = element(&answer, "instanceId");
    assert_eq!(list(cloud, &infra).await.len(), 2);
    let terminate = |id: &str| {
        let form = format!("Action=TerminateInstances&Version=2016-11-15&InstanceId.1={id}");
        async move { cloud.query("ec2", REGION, &form).await }
    };
    terminate(&instance).await;
    let found = list(cloud, &infra).await;
    assert_eq!(found.len(), 1);
    assert!(found[0].contains(":instance/i-") && !found[0].ends_with(&instance), "{found:?}");
    terminate(found[0].rsplit('/').next().unwrap()).await;
    assert_eq!(list(cloud, &infra).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_deleted_nat_gateway_is_not_listed() {
    let (cloud, infra) = (bed::moto(), infra());
    let [key, _] = tag_keys(&infra.infra_id);
    let ec2 = async |form: String| {
        let form = format!("Action={form}&Version=2016-11-15");
        cloud.query("ec2", REGION, &form).await
    };
    let vpc = ec2("CreateVpc&CidrBlock=10.0.0.0/16".to_owned()).await;
    let vpc = element(&vpc, "vpcId");
    let subnet = ec2(format!("CreateSubnet&VpcId={vpc}&CidrBlock=10.0.0.0/24")).await;
    let subnet = element(&subnet, "subnetId");
    let gateway = ec2(format!(
        "CreateNatGateway&SubnetId={subnet}&ConnectivityType=private\
         &TagSpecification.1.ResourceType=natgateway&TagSpecification.1.Tag.1.Key={key}\
         &TagSpecification.1.Tag.1.Value=owned"
    ))
    .await;
    let gateway = element(&gateway, "natGatewayId");
    let endpoint = ec2(format!(
        "CreateVpcEndpoint&VpcId={vpc}&ServiceName=com.amazonaws.{REGION}.ec2\
         &VpcEndpointType=Interface&SubnetId.1={subnet}\
         &TagSpecification.1.ResourceType=vpc-endpoint&TagSpecification.1.Tag.1.Key={key}\
         &TagSpecification.1.Tag.1.Value=owned"
    ))
    .await;
    let endpoint = element(&endpoint, "vpcEndpointId");
    ec2(format!("CreateTags&ResourceId.1={vpc}&Tag.1.Key={key}&Tag.1.Value=owned")).await;
    let found = list(cloud, &infra).await;
    for id in [&vpc, &gateway] {
        assert!(found.iter().any(|arn| arn.ends_with(id.as_str())), "{id} {found:?}");
    }
    ec2(format!("DeleteNatGateway&NatGatewayId={gateway}")).await;
    ec2(format!("DeleteVpcEndpoints&VpcEndpointId.1={endpoint}")).await;
    let found = list(cloud, &infra).await;
    assert!(found.len() == 1 && found[0].ends_with(&vpc), "{found:?}");
}

#[tokio::test]
async fn a_failed_query_is_not_an_empty_answer() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        assert!(stream.read(&mut [0; 8_192]).await.unwrap() > 0);
        stream.write_all(b"HTTP/1.1 403 x\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
        stream
    };
    let credentials = bed::credentials("test", "test");
    let client =
        tenure_clusters::aws::Client::with_credentials(REGION, Some(&url), &credentials).unwrap();
    let inventory = AwsInventory::new(client);
    let infra = infra();
    let (result, _stream) = tokio::join!(inventory.list(&infra), server);
    let error = result.unwrap_err().to_string();
    assert!(error.contains("tagging refused GetResources"), "{error}");
    let nameless = Infra { infra_id: String::new(), ..infra };
    inventory.list(&nameless).await.unwrap_err();
}

#[tokio::test]
async fn queues_are_found_in_their_region_only() {
    let cloud = bed::moto();
    let name = format!("{}.fifo", unique("here"));
    let form = format!(
        "Action=CreateQueue&QueueName={name}&Attribute.1.Name=FifoQueue&Attribute.1.Value=true"
    );
    cloud.query("sqs", REGION, &form).await;
    assert!(Queue::find(&cloud.client(REGION), &name).await.unwrap().is_some());
    assert!(Queue::find(&cloud.client("us-west-2"), &name).await.unwrap().is_none());
}
