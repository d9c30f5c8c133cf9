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
        (&[("TENURE_BUILD", "b"), ("TENURE_WORKER", "w")], "b w False"),
        (
            &[
                ("GITHUB_ACTIONS", "true"),
                ("GITHUB_REPOSITORY", "acme/web"),
                ("GITHUB_RUN_ID", "77"),
                ("GITHUB_RUN_ATTEMPT", "2"),
                ("GITHUB_JOB", "test"),
                ("RUNNER_NAME", "runner-3"),
            ],
            "acme/web/77/test runner-3 True",
        ),
        (
            &[
                ("GITLAB_CI", "true"),
                ("CI_PROJECT_PATH", "acme/web"),
                ("CI_PIPELINE_ID", "9"),
                ("CI_JOB_NAME", "unit tests 3/8"),
                ("CI_NODE_INDEX", "3"),
            ],
            "acme/web/9/unit-tests 3 False",
        ),
        (
            &[
                ("BUILDKITE", "true"),
                ("BUILDKITE_BUILD_ID", "0190-ab"),
                ("BUILDKITE_STEP_ID", "s1"),
                ("BUILDKITE_PARALLEL_JOB", "0"),
                ("BUILDKITE_RETRY_COUNT", "1"),
            ],
            "0190-ab/s1 0 True",
        ),
        (
            &[
                ("CIRCLECI", "true"),
                ("CIRCLE_WORKFLOW_ID", "w1"),
                ("CIRCLE_JOB", "test"),
                ("CIRCLE_NODE_INDEX", "0"),
            ],
            "w1/test 0 False",
        ),
        (
            &[
                ("JENKINS_URL", "http://ci"),
                ("JOB_NAME", "web"),
                ("BUILD_NUMBER", "12"),
                ("NODE_NAME", "agent 1"),
                ("EXECUTOR_NUMBER", "0"),
            ],
            "web/12 agent 1-0 False",
        ),
    ];
    let program = "
import os
from pytest_tenure import ci
print(ci.build_id(os.environ), ci.worker_id(os.environ), ci.is_retry(os.environ))
";
    for (env, expected) in cases {
        assert_eq!(evaluate(program, &[], env).trim_end(), expected);
    }
}
