//! What nodes compute alone: the order of the tests, and the ids that CI systems imply.

use tenure_builds::order;

use crate::bed::evaluate;

#[test]
fn order_and_digest_are_those_of_the_server() {
    let tests: Vec<String> =
        (0..50).map(|n| format!("test_{n}.py::test_é\u{10400}[{}]", n * 7919)).collect();
    let program = "
import sys
from pytest_tenure import order
print('\\n'.join([order.digest(sys.argv[1:]), *order.order(sys.argv[1:], '4711')]))
";
    let lines = evaluate(program, &tests, &[]);
    let ordered = order::order(&tests, "4711", &std::collections::HashMap::new());
    let expected = [vec![order::digest(&tests)], ordered].concat().join("\n");
    assert_eq!(lines.trim_end(), expected);
}

#[test]
fn ids_of_builds_and_nodes_are_found_in_ci_systems() {
    type Variables<'a> = &'a [(&'a str, &'a str)];
    let cases: [(Variables<'_>, &str); 6] = [
        (&[("TENURE_BUILD", "b"), ("TENURE_WORKER", "w")], "b w"),
        (
            &[
                ("GITHUB_REPOSITORY", "acme/web"),
                ("GITHUB_RUN_ID", "77"),
                ("GITHUB_RUN_ATTEMPT", "2"),
                ("GITHUB_JOB", "test"),
                ("RUNNER_NAME", "runner-3"),
            ],
            "github/acme/web/77.2/test runner-3",
        ),
        (
            &[
                ("CI_PROJECT_ID", "5"),
                ("CI_PIPELINE_ID", "77"),
                ("CI_JOB_NAME", "test 2/5"),
                ("CI_NODE_INDEX", "2"),
                ("CI_JOB_ID", "901"),
            ],
            "gitlab/5/77/test 2/901",
        ),
        (
            &[
                ("BUILDKITE_BUILD_ID", "0190-ab"),
                ("BUILDKITE_STEP_KEY", "unit tests"),
                ("BUILDKITE_PARALLEL_JOB", "3"),
                ("BUILDKITE_RETRY_COUNT", "1"),
            ],
            "buildkite/0190-ab/unit-tests-b3960edd2455 3/1",
        ),
        (
            &[("CIRCLE_WORKFLOW_ID", "ab-12"), ("CIRCLE_JOB", "test"), ("CIRCLE_NODE_INDEX", "4")],
            "circleci/ab-12/test 4",
        ),
        (
            &[
                ("JENKINS_URL", "http://ci"),
                ("BUILD_TAG", "jenkins-web-77"),
                ("NODE_NAME", "agent"),
                ("EXECUTOR_NUMBER", "1"),
            ],
            "jenkins-web-77 agent/1",
        ),
    ];
    let program = "
import os
from pytest_tenure import ci
print(ci.build_id(os.environ), ci.worker_id(os.environ))
";
    for (env, expected) in cases {
        assert_eq!(evaluate(program, &[], env).trim_end(), expected);
    }
}
