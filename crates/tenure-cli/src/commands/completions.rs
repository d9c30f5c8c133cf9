//! `tenure completions`: the scripts of `clap_complete`, which also call `tenure __complete` for
//! names that only the server knows.

use std::process::ExitCode;

use clap::Args;
use clap_complete::Shell;

use super::complete::VERB;
use tenure_cli_kit::Done;
use tenure_cli_kit::text::print_line;

/// Print a completion script for a shell
///
/// Redirect it into a file in the completion directory of the shell. In bash, zsh and fish it also
/// completes kinds, resources, locks, jobs and keys of the server, unless it does not answer within
/// 500ms, or the duration in TENURE_COMPLETION_TIMEOUT.
#[derive(Args)]
#[command(after_help = "\
Examples:
  source <(tenure completions bash)
  tenure completions zsh > ~/.zfunc/_tenure
  tenure completions fish > ~/.config/fish/completions/tenure.fish")]
pub(super) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(super) fn run(&self) -> Done {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut super::command(), "tenure", &mut script);
        let script = String::from_utf8(script)?;
        print_line(with_server_names(self.shell, &script).trim_end())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Adds the calls of `tenure __complete` to a script. They run the binary in `PATH`: the first word
/// of the command line may be a file in a directory that is not trusted. The candidates, if
/// any, replace the others, except in fish, where they are added to them.
fn with_server_names(shell: Shell, script: &str) -> String {
    match shell {
        Shell::Bash => {
            let ask = format!(
                r#"
_tenure_with_names() {{
    # Bash also splits words at ":", "=" and "@". What no blank separates is one argument.
    local name word rest="${{COMP_LINE:0:COMP_POINT}}" typed
    local -a words=() parts=("${{COMP_WORDS[@]:0:COMP_CWORD+1}}")
    for word in "${{parts[@]}}"; do
        typed="${{rest#"${{rest%%[![:blank:]]*}}"}}"
        if [[ ${{#words[@]}} -gt 0 && "$typed" == "$rest" ]]; then
            words[${{#words[@]}}-1]+="${{typed:0:${{#word}}}}"
        else
            words+=("${{typed:0:${{#word}}}}")
        fi
        rest="${{typed:${{#word}}}}"
    done
    # Bash replaces only what follows the last break.
    local kept="${{words[${{#words[@]}}-1]}}"
    kept="${{kept%"$2"}}"
    COMPREPLY=()
    while IFS= read -r name; do
        COMPREPLY+=("${{name#"$kept"}}")
    done < <(command tenure {VERB} "${{words[@]:1}}" 2>/dev/null)
    if [[ ${{#COMPREPLY[@]}} -eq 0 && -z "$kept" ]]; then
        _tenure "$@"
    fi
}}
"#
            );
            script.replace("complete -F _tenure ", "complete -F _tenure_with_names ") + &ask
        }
        Shell::Zsh => {
            let ask = format!(
                r#"_tenure() {{
    local -a names
    names=("${{(@f)$(command tenure {VERB} "${{(@)words[2,CURRENT]}}" 2>/dev/null)}}")
    if [[ -n "$names[1]" ]]; then
        compadd -a names
        return
    fi
"#
            );
            script.replacen("_tenure() {\n", &ask, 1)
        }
        Shell::Fish => {
            let words = "(commandline -opc)[2..] (commandline -ct | string collect --allow-empty)";
            format!("{script}complete -c tenure -a '(tenure {VERB} {words} 2>/dev/null)'\n")
        }
        _ => script.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_ask_for_names_of_the_server() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut crate::commands::command(), "tenure", &mut script);
            let script = with_server_names(shell, &String::from_utf8(script).unwrap());
            assert_eq!(script.matches(VERB).count(), 1, "{shell}");
            assert!(script.contains(&format!("(tenure {VERB} ")) == (shell == Shell::Fish));
            assert!(script.contains(&format!("(command tenure {VERB} ")) != (shell == Shell::Fish));
            assert!(!script.contains("complete -F _tenure "), "{shell}");
        }
    }
}
