// Sends requests that the gateway refuses before it has read them, and counts the responses that
// arrive: refused URL STATUS TRIES [KEY]
package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"strconv"
)

func main() {
	status, _ := strconv.Atoi(os.Args[2])
	tries, _ := strconv.Atoi(os.Args[3])
	body := bytes.Repeat([]byte("x"), 4<<20)
	received := 0
	for i := 0; i < tries; i++ {
		request, _ := http.NewRequest("POST", os.Args[1], bytes.NewReader(body))
		request.Header.Set("X-Account", "a")
		if len(os.Args) > 4 {
			request.Header.Set("Idempotency-Key", os.Args[4])
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			continue
		}
		response.Body.Close()
		if response.StatusCode == status {
			received++
		}
	}
	fmt.Println(received)
}
