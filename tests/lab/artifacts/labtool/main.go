// Command labtool is the only program in the lab's container image: pause, a web server that says its
// host name, a client that resolves a name and fetches a page, and a list of files that match a pattern.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	mode := "pause"
	if len(os.Args) > 1 {
		mode = os.Args[1]
	}
	switch {
	case mode == "pause":
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
		<-stop
	case mode == "serve" && len(os.Args) == 3:
		serve(os.Args[2])
	case mode == "get" && len(os.Args) == 3:
		get(os.Args[2])
	case mode == "files" && len(os.Args) == 3:
		files(os.Args[2])
	default:
		fmt.Fprintln(os.Stderr, "usage: labtool pause | serve ADDRESS | get URL | files PATTERN")
		os.Exit(2)
	}
}

func serve(address string) {
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		name, _ := os.Hostname()
		fmt.Fprintf(w, "hello from %s\n", name)
	})
	fmt.Fprintln(os.Stderr, http.ListenAndServe(address, nil))
	os.Exit(1)
}

func get(url string) {
	client := http.Client{Timeout: 10 * time.Second}
	answer, err := client.Get(url)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer answer.Body.Close()
	io.Copy(os.Stdout, answer.Body)
	if answer.StatusCode != http.StatusOK {
		os.Exit(1)
	}
}

func files(pattern string) {
	found, err := filepath.Glob(pattern)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, path := range found {
		fmt.Println(path)
	}
}
