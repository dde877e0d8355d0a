"""One module for each kind of result: `to_doc` gives its outline, which becomes text or HTML, and `to_json` plain
data."""
