package discover_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/discover"
)

func followed(ctx context.Context, router *endpick.Router) error {
	watcher, err := discover.New(discover.Config{
		Router:  router,
		Source:  discover.File("/etc/endpick/servers"),
		OnError: func(err error) { log.Print(err) },
	})
	if err != nil {
		return err
	}
	go watcher.Run(ctx)
	return nil
}

// The router follows a file. A file with a mistake changes nothing.
func Example() {
	router, err := endpick.New(endpick.Config{})
	if err != nil {
		panic(err)
	}
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "servers")
	watcher, err := discover.New(discover.Config{Router: router, Source: discover.File(path)})
	if err != nil {
		panic(err)
	}
	for _, list := range []string{
		"# two servers\n10.0.0.1:8000\n10.0.0.2:8000 # the new one\n",
		"10.0.0.2:8000\n10.0.0.2:8000\n",
		"10.0.0.2:8000\n10.0.0.3:8000\n",
	} {
		if err := os.WriteFile(path, []byte(list), 0o600); err != nil {
			panic(err)
		}
		for range 2 { // a file counts once two polls in a row see the same
			if err := watcher.Poll(context.Background()); err != nil {
				fmt.Println("refused")
			}
		}
		for _, e := range router.Endpoints() {
			fmt.Println(e.Candidate.Endpoint.ID)
		}
	}
	// Output:
	// 10.0.0.1:8000
	// 10.0.0.2:8000
	// refused
	// 10.0.0.1:8000
	// 10.0.0.2:8000
	// 10.0.0.2:8000
	// 10.0.0.3:8000
}

var _ = followed // in docs/fleet.md
