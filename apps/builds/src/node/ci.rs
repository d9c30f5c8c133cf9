//! Ids of build and node from the environment variables of CI systems.

/// What the environment says about a build.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CiEnvironment {
    /// Id of the build: the same on all its nodes.
    pub(crate) build: Option<String>,
    /// Name of the node: different on each.
    pub(crate) worker: Option<String>,
    /// Whether the node is run again.
    pub(crate) is_retry: bool,
}

/// Reads the variables of GitHub Actions, GitLab, Buildkite, CircleCI or Jenkins.
pub(crate) fn detect(variable: impl Fn(&str) -> Option<String>) -> CiEnvironment {
    let get = |name: &str| variable(name).filter(|value| !value.is_empty());
    let join = |names: &[&str]| {
        let values: Option<Vec<String>> = names.iter().map(|name| get(name)).collect();
        values.map(|values| build_id(&values.join("/")))
    };
    let first = |names: &[&str]| names.iter().find_map(|name| get(name));
    let above = |name: &str, limit: u64| {
        get(name).and_then(|value| value.parse::<u64>().ok()).is_some_and(|n| n > limit)
    };
    if get("GITHUB_ACTIONS").is_some() {
        return CiEnvironment {
            build: join(&["GITHUB_REPOSITORY", "GITHUB_RUN_ID", "GITHUB_JOB"]),
            worker: first(&["RUNNER_NAME"]),
            is_retry: above("GITHUB_RUN_ATTEMPT", 1),
        };
    }
    if get("GITLAB_CI").is_some() {
        // The names of parallel jobs end in their number: `rspec 3/8`.
        let job = get("CI_JOB_NAME").unwrap_or_default();
        let job =
            job.rsplit_once(' ').filter(|(_, part)| part.contains('/')).map_or(&*job, |p| p.0);
        let build = join(&["CI_PROJECT_PATH", "CI_PIPELINE_ID"]);
        return CiEnvironment {
            build: build.map(|build| build_id(&format!("{build}/{job}"))),
            worker: first(&["CI_NODE_INDEX", "CI_JOB_ID"]),
            is_retry: false,
        };
    }
    if get("BUILDKITE").is_some() {
        return CiEnvironment {
            build: join(&["BUILDKITE_BUILD_ID", "BUILDKITE_STEP_ID"])
                .or_else(|| join(&["BUILDKITE_BUILD_ID"])),
            worker: first(&["BUILDKITE_PARALLEL_JOB", "BUILDKITE_JOB_ID"]),
            is_retry: above("BUILDKITE_RETRY_COUNT", 0),
        };
    }
    if get("CIRCLECI").is_some() {
        return CiEnvironment {
            build: join(&["CIRCLE_WORKFLOW_ID", "CIRCLE_JOB"]),
            worker: first(&["CIRCLE_NODE_INDEX"]),
            is_retry: false,
        };
    }
    if get("JENKINS_URL").is_some() {
        let executor = get("NODE_NAME").zip(get("EXECUTOR_NUMBER"));
        return CiEnvironment {
            build: join(&["JOB_NAME", "BUILD_NUMBER"]),
            worker: executor.map(|(node, executor)| format!("{node}-{executor}")),
            is_retry: false,
        };
    }
    CiEnvironment::default()
}

/// Returns an id with the characters that ids of builds may have.
fn build_id(text: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
    let id: String = text.chars().map(|c| if allowed(c) { c } else { '-' }).collect();
    id.trim_start_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::check_build;

    fn environment(variables: &[(&str, &str)]) -> CiEnvironment {
        let found = |name: &str| {
            variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
        };
        let environment = detect(found);
        environment.build.iter().for_each(|build| check_build(build).unwrap());
        environment
    }

    fn ids(environment: &CiEnvironment) -> (&str, &str, bool) {
        let CiEnvironment { build, worker, is_retry } = environment;
        (build.as_deref().unwrap_or(""), worker.as_deref().unwrap_or(""), *is_retry)
    }

    #[test]
    fn each_system_names_build_and_node() {
        let github = environment(&[
            ("GITHUB_ACTIONS", "true"),
            ("GITHUB_REPOSITORY", "acme/web"),
            ("GITHUB_RUN_ID", "77"),
            ("GITHUB_JOB", "test"),
            ("RUNNER_NAME", "runner-4"),
            ("GITHUB_RUN_ATTEMPT", "2"),
        ]);
        assert_eq!(ids(&github), ("acme/web/77/test", "runner-4", true));
        let gitlab = environment(&[
            ("GITLAB_CI", "true"),
            ("CI_PROJECT_PATH", "acme/web"),
            ("CI_PIPELINE_ID", "9"),
            ("CI_JOB_NAME", "unit tests 3/8"),
            ("CI_NODE_INDEX", "3"),
        ]);
        assert_eq!(ids(&gitlab), ("acme/web/9/unit-tests", "3", false));
        let buildkite = environment(&[
            ("BUILDKITE", "true"),
            ("BUILDKITE_BUILD_ID", "0190-ab"),
            ("BUILDKITE_STEP_ID", "s1"),
            ("BUILDKITE_PARALLEL_JOB", "0"),
            ("BUILDKITE_RETRY_COUNT", "0"),
        ]);
        assert_eq!(ids(&buildkite), ("0190-ab/s1", "0", false));
        let circle = environment(&[
            ("CIRCLECI", "true"),
            ("CIRCLE_WORKFLOW_ID", "w1"),
            ("CIRCLE_JOB", "test"),
            ("CIRCLE_NODE_INDEX", "0"),
        ]);
        assert_eq!(ids(&circle), ("w1/test", "0", false));
        let jenkins = environment(&[
            ("JENKINS_URL", "http://ci"),
            ("JOB_NAME", "web"),
            ("BUILD_NUMBER", "12"),
            ("NODE_NAME", "agent 1"),
            ("EXECUTOR_NUMBER", "0"),
        ]);
        assert_eq!(ids(&jenkins), ("web/12", "agent 1-0", false));
        assert_eq!(environment(&[]), CiEnvironment::default());
    }
}
