"""Every public name of MXNet, and what the front end has in its place: `inventory`, `table`, `implementations`."""
