"""One module for each kind of result: `lower` gives its outline, which becomes text or HTML, and `to_json` plain
data."""
