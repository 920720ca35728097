module github.com/endpick/endpick/transport/scrape

go 1.25.0

require (
	github.com/endpick/endpick v0.0.0
	github.com/stretchr/testify v1.12.1
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/google/btree v1.1.3 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)

replace github.com/endpick/endpick => ../../
