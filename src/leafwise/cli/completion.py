"""`leafwise completion`: scripts that let bash, zsh and fish complete verbs, options, files and paths in files."""

import argparse
import sys
from typing import Any

# Candidates never pass through an expansion of the shell: they are read line by line, and only as text.
_BASH = """\
# Completion of leafwise for bash. In ~/.bashrc: eval "$(leafwise completion bash)"
_leafwise() {
    local line hint='' current="${COMP_WORDS[COMP_CWORD]}"
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ -z $hint ]]; then hint=$line; else COMPREPLY+=("$line"); fi
    done < <(leafwise __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    if [[ $hint == nospace ]]; then
        compopt -o nospace 2>/dev/null
    elif [[ $hint == files ]]; then
        compopt -o filenames 2>/dev/null
        while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "$current")
    fi
}
complete -F _leafwise leafwise
"""

_ZSH = """\
#compdef leafwise
# Completion of leafwise for zsh. In ~/.zshrc, after compinit: eval "$(leafwise completion zsh)"
_leafwise() {
    local -a lines
    lines=("${(@f)$(leafwise __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    local hint=$lines[1]
    shift lines
    if [[ $hint == nospace ]]; then
        compadd -S '' -a lines
    else
        compadd -a lines
    fi
    if [[ $hint == files ]]; then _files; fi
}
if [[ $funcstack[1] == _leafwise ]]; then _leafwise "$@"; else compdef _leafwise leafwise; fi
"""

_FISH = """\
# Completion of leafwise for fish. In ~/.config/fish/config.fish: leafwise completion fish | source
function __leafwise_complete
    set -l words (commandline -opc)
    set -e words[1]
    set -l current (commandline -ct)
    set -l lines (leafwise __complete $words "$current" 2>/dev/null)
    set -l hint $lines[1]
    set -e lines[1]
    test (count $lines) -gt 0; and printf '%s\\n' $lines
    test "$hint" = files; and __fish_complete_path "$current"
end
complete -c leafwise -f -a '(__leafwise_complete)'
"""

_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "completion",
        help="print a script that completes commands in bash, zsh or fish",
        description="Prints a script for a shell. It completes verbs, options, values of options, names of files and, "
        "after a file, the paths in it. Then only the header of the file is read.",
        epilog='example: eval "$(leafwise completion bash)"',
    )
    parser.add_argument("shell", metavar="SHELL", choices=list(_SCRIPTS), help=f"one of {', '.join(_SCRIPTS)}")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    sys.stdout.write(_SCRIPTS[options.shell])
    return 0
