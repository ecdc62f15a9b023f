"""`make bench-page`: the benches one after the other, their figures as JSON, charts and a page of docs/."""
