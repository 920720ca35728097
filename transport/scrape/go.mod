module github.com/endpick/endpick/transport/scrape

go 1.25.0

require github.com/endpick/endpick v0.0.0

replace github.com/endpick/endpick => ../../
